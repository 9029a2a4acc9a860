"""POST /v1/images/generations and /v1/images/edits, and images in chats, as OpenAI's client meets them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from openai import APIError, BadRequestError, InternalServerError, OpenAI

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import BROKEN, client_of, painting, replaced, served
from toy_generators import NAME as TALKER
from toy_painter import NAME, PLAN, SIZE, denoise, painter, picture_of, preview_of
from toy_runtime import Job, Script, ToyRuntime

from mstar_rt.message import Submit

PROMPT = "a red barn"
GIVEN = np.random.default_rng(3).integers(0, 256, (40, 24, 3), np.uint8)
ASKED = {"role": "user", "content": "what?"}


def file_of(pixels: np.ndarray, suffix: str = ".png") -> bytes:
    return bytes(cv2.imencode(suffix, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1])


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


PNG = file_of(GIVEN)


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with painting() as running:
        yield running


@pytest.fixture(scope="module")
def client(runtime: ToyRuntime) -> Iterator[OpenAI]:
    with client_of(runtime) as opened:
        yield opened


def draw(client: OpenAI, **fields: Any) -> Any:
    return client.images.generate(**{"model": NAME, "prompt": PROMPT, **fields})


def edit(client: OpenAI, **fields: Any) -> Any:
    return client.images.edit(**{"model": NAME, "prompt": PROMPT, "image": PNG, **fields})


def pixels_of(data: str) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_UNCHANGED)
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def params(runtime: ToyRuntime) -> dict[str, Any]:
    return dict(runtime.seen(Submit)[-1].params)


# ---- images


def test_an_image(runtime: ToyRuntime, client: OpenAI) -> None:
    answer = draw(client, extra_body={"seed": 7})
    (image,) = answer.data
    np.testing.assert_array_equal(pixels_of(image.b64_json), picture_of(PROMPT, params(runtime)))
    assert (image.model_extra, image.url) == ({"seed": 7}, None)
    assert (answer.output_format, answer.background, answer.size) == ("png", "opaque", f"{SIZE[1]}x{SIZE[0]}")
    assert (answer.usage.input_tokens, answer.usage.total_tokens) == (len(PROMPT), len(PROMPT))
    assert answer.created > 1.7e9


def test_size_and_format(runtime: ToyRuntime, client: OpenAI) -> None:
    answer = draw(client, size="64x16", output_format="jpeg", response_format="b64_json")
    assert pixels_of(answer.data[0].b64_json).shape == (16, 64, 3)
    assert base64.b64decode(answer.data[0].b64_json).startswith(b"\xff\xd8")
    assert (answer.size, answer.output_format) == ("64x16", "jpeg")
    assert draw(client, size="auto").size == f"{SIZE[1]}x{SIZE[0]}"


def test_n_images_are_those_of_one_seed_after_the_other(client: OpenAI) -> None:
    answer = draw(client, n=3, extra_body={"seed": 5})
    assert [image.seed for image in answer.data] == [5, 6, 7]
    alone = [draw(client, extra_body={"seed": seed}).data[0].b64_json for seed in (5, 6, 7)]
    assert [image.b64_json for image in answer.data] == alone
    assert answer.usage.input_tokens == len(PROMPT)


def test_equal_seeds_are_equal_and_none_is_fresh(client: OpenAI) -> None:
    first, again, fresh, fresher = (
        draw(client, extra_body=body).data[0] for body in ({"seed": 1}, {"seed": 1}, {}, {})
    )
    assert first.b64_json == again.b64_json
    assert len({first.b64_json, fresh.b64_json, fresher.b64_json}) == 3
    assert draw(client, extra_body={"seed": fresh.seed}).data[0].b64_json == fresh.b64_json


EXTRAS: dict[str, Any] = {
    "cfg_text_scale": 5.0, "cfg_img_scale": 2, "cfg_interval": [0.25, 0.75], "cfg_renorm_type": "channel",
    "cfg_renorm_min": 0.5, "num_inference_steps": 3, "timestep_shift": 2.0, "seed": 1,
}  # fmt: skip
REACHED = {
    "text_guidance": 5.0, "image_guidance": 2.0, "guidance_start": 0.25, "guidance_end": 0.75,
    "renormalization": "channel", "renormalization_min": 0.5, "num_denoise_steps": 3, "timestep_shift": 2.0, "seed": 1,
}  # fmt: skip


def test_what_only_image_models_have_is_told_beside(runtime: ToyRuntime, client: OpenAI) -> None:
    draw(client, size="8x16", extra_body={**EXTRAS, "budget_ms": 60_000})
    others = {"preview_every": 0, "latents_every": 0}
    assert params(runtime) == {**REACHED, "width": 8, "height": 16, **others}
    assert runtime.seen(Submit)[-1].deadline_ns is not None
    edit(client, extra_body={**EXTRAS, "budget_ms": 60_000})
    assert params(runtime) == {**REACHED, **others}
    assert runtime.seen(Submit)[-1].deadline_ns is not None


def test_a_plan_is_the_revised_prompt(runtime: ToyRuntime, client: OpenAI) -> None:
    answer = draw(client, n=2, extra_body={"think": True})
    assert [image.revised_prompt for image in answer.data] == [PLAN, PLAN]
    assert answer.usage.output_tokens == 2 * len(PLAN)
    assert draw(client, extra_body={"think": False}).data[0].revised_prompt is None
    assert draw(client, extra_body={"think": True, "max_tokens": 5}).data[0].revised_prompt == PLAN[:5]
    draw(client, extra_body={"think": True, "stop": ["on", "ß"]})
    assert params(runtime)["stop"] == '["on", "ß"]'
    *_, last = draw(client, stream=True, extra_body={"think": True})
    assert (last.type, last.revised_prompt) == ("image_generation.completed", PLAN)


@pytest.mark.parametrize("image", [PNG, ("barn.png", PNG, "image/png"), [PNG], file_of(GIVEN, ".jpg")])
def test_an_edit(runtime: ToyRuntime, client: OpenAI, image: Any) -> None:
    answer = edit(client, image=image, n=2, extra_body={"seed": 4})
    sent = GIVEN if image != file_of(GIVEN, ".jpg") else pixels_of(base64.b64encode(image).decode())
    for index, made in enumerate(answer.data):
        expected = picture_of(PROMPT, {**params(runtime), "seed": 4 + index}, sent)
        np.testing.assert_array_equal(pixels_of(made.b64_json), expected)
    assert answer.size == "24x40"


def test_what_has_no_effect_is_let_in(client: OpenAI) -> None:
    draw(client, background="auto", quality="auto", moderation="auto", n=1, stream=False, partial_images=0)
    edit(client, background="opaque", quality="auto", n=1, size="auto")


# ---- as they are made


@pytest.mark.parametrize(("make", "kind"), [(draw, "image_generation"), (edit, "image_edit")])
def test_a_stream_has_partial_images_and_then_the_image(client: OpenAI, make: Any, kind: str) -> None:
    whole = make(client, extra_body={"seed": 3}).data[0].b64_json
    *partial, last = list(make(client, stream=True, partial_images=2, extra_body={"seed": 3}))
    assert [event.type for event in partial] == [f"{kind}.partial_image"] * 2
    assert [event.partial_image_index for event in partial] == [0, 1]
    for event, step in zip(partial, (2, 4), strict=True):
        np.testing.assert_array_equal(pixels_of(event.b64_json), preview_of(pixels_of(whole), step))
        assert (event.output_format, event.background) == ("png", "opaque")
    assert (last.type, last.seed) == (f"{kind}.completed", 3)
    assert pixels_of(last.b64_json).shape == pixels_of(whole).shape
    assert last.usage.input_tokens == len(PROMPT)


@pytest.mark.parametrize(("asked", "steps", "sent"), [(0, 6, 0), (1, 6, 1), (3, 6, 3), (3, 4, 3), (3, 3, 2), (3, 1, 0)])
def test_how_many_partial_images_there_are(client: OpenAI, asked: int, steps: int, sent: int) -> None:
    events = list(draw(client, stream=True, partial_images=asked, extra_body={"num_inference_steps": steps}))
    assert len(events) == sent + 1


def test_several_images_of_a_stream_are_told_apart(client: OpenAI) -> None:
    events = list(draw(client, stream=True, n=2, partial_images=1, extra_body={"seed": 3}))
    for index in range(2):
        mine = [event for event in events if event.image_index == index]
        assert [event.type.rpartition(".")[2] for event in mine] == ["partial_image", "completed"]
        assert mine[-1].seed == 3 + index


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 0}, "n", "n is 0, expected 1 to 16"),
        ({"n": 17}, "n", "n is 17"),
        ({"n": "two"}, "n", 'n is "two", expected a whole number'),
        ({"size": "large"}, "size", 'size is "large", expected "auto" or "WIDTHxHEIGHT"'),
        ({"size": "16 x 16"}, "size", "expected"),
        ({"size": "99999999999999999999x32"}, "size", '"WIDTHxHEIGHT" in pixels, each at most 999999'),
        ({"size": "2000x16"}, "size", "option 'size (width)' is 2000, expected 8 to 256"),
        ({"response_format": "url"}, "response_format", "keeps no images to be fetched: ask for b64_json"),
        ({"response_format": "png"}, "response_format", "expected b64_json"),
        ({"output_format": "webp"}, "output_format", "is webp, which this server does not make"),
        ({"output_format": "tiff"}, "output_format", "expected one of png, jpeg"),
        ({"background": "transparent"}, "background", "does not serve"),
        ({"quality": "high"}, "quality", 'quality is "high", which this server does not serve'),
        ({"style": "vivid"}, "style", "does not serve: leave it out"),
        ({"moderation": "low"}, "moderation", "does not serve"),
        ({"user": "me"}, "user", "does not serve"),
        ({"output_compression": 50}, "output_compression", "does not serve"),
        ({"partial_images": 1}, "partial_images", "is given without stream"),
        ({"stream": True, "partial_images": 4}, "partial_images", "expected 0 to 3"),
        ({"extra_body": {"num_steps": 3}}, "num_steps", "not known here"),
        ({"extra_body": {"num_inference_steps": 0}}, "num_inference_steps", "option 'num_inference_steps' is 0, expected 1"),
        ({"extra_body": {"cfg_interval": [0.4]}}, "cfg_interval", "has 1 numbers, expected two"),
        ({"extra_body": {"cfg_interval": 0.4}}, "cfg_interval", "expected a list of numbers"),
        ({"extra_body": {"cfg_interval": [0.4, "x"]}}, "cfg_interval", "expected a list of numbers"),
        ({"extra_body": {"cfg_interval": [0.4, 1.5]}}, "cfg_interval", "option 'cfg_interval[1]' is 1.5"),
        ({"extra_body": {"cfg_renorm_type": "local"}}, "cfg_renorm_type", "expected one of none, global"),
        ({"extra_body": {"cfg_text_scale": "big"}}, "cfg_text_scale", "expected a number"),
        ({"extra_body": {"seed": 2**63 - 1}, "n": 2}, "seed", "seed + 1"),
        ({"extra_body": {"seed": 2**63}}, "seed", "seed is 9223372036854775808, expected 0 to 9223372036854775807"),
        ({"extra_body": {"seed": -1}}, "seed", "seed is -1, expected 0 to 9223372036854775807"),
        ({"extra_body": {"top_k": 3}}, "top_k", "top_k is no option of model 'painter'"),
        ({"extra_body": {"max_tokens": 3}}, "max_tokens", "is of the plan, which is written with `think`: set `think`"),
        ({"extra_body": {"stop": "sky"}}, "stop", "is of the plan, which is written with `think`: set `think`"),
        ({"extra_body": {"stop": 5}}, "stop", "stop is "),
        ({"extra_body": {"budget_ms": 0}}, "budget_ms", "budget_ms is 0"),
        ({"prompt": "  "}, "prompt", "prompt has no word in it"),
        ({"prompt": "x" * 5000}, "prompt", "the prompt has 5004 characters"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [draw, edit])
def test_what_is_wrong_or_not_served_is_refused_by_name(
    runtime: ToyRuntime, client: OpenAI, make: Any, fields: dict[str, Any], param: str | None, message: str
) -> None:
    if make is edit and {"style", "moderation"} & fields.keys():
        fields = {"extra_body": fields}
    if make is edit and fields.get("size") == "2000x16":
        message = "size (width) is given, but an edit has the size of its image: leave it out"
    if make is edit and "is of the plan" in message:
        message = f"{param} is of the plan, which model 'painter' does not write before it edits: leave it out"
    num_before = len(runtime.seen(Submit))
    with pytest.raises(BadRequestError) as error:
        make(client, **fields)
    assert message in error.value.message
    assert (error.value.param, error.value.type) == (param, "invalid_request_error")
    assert len(runtime.seen(Submit)) == num_before


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"image": b"GIF89a"}, "image", "neither a PNG nor a JPEG file"),
        ({"image": b""}, "image", "0 bytes"),
        ({"image": PNG[:-20]}, "image", "not a complete PNG file"),
        ({"image": [PNG, PNG]}, "image", "'image' more than once"),
        ({"image": file_of(np.zeros((300, 8, 3), np.uint8))}, "image", "H = 300, the limit of this model is 256"),
        ({"mask": PNG}, "mask", "mask is a file of"),
        ({"input_fidelity": "high"}, "input_fidelity", "does not serve"),
        ({"extra_body": {"think": True}}, "think", "does not think before it edits"),
        ({"extra_body": {"think": "perhaps"}}, "think", "expected true or false"),
        ({"extra_body": {"seed": "1e3"}}, "seed", "expected a whole number"),
    ],
)
def test_edits_that_are_refused(client: OpenAI, fields: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        edit(client, **fields)
    assert message in error.value.message
    assert error.value.param == param


def test_models_that_do_not(client: OpenAI) -> None:
    with served() as talking, client_of(talking) as asking:
        for make in (draw, edit):
            with pytest.raises(BadRequestError, match="does not make images, it chats and speaks"):
                make(asking, model=TALKER)
    with painting(painter(edits=False, thinks=False)) as drawing, client_of(drawing) as asking:
        with pytest.raises(BadRequestError, match="does not edit images"):
            edit(asking)
        with pytest.raises(BadRequestError, match="does not think before it draws"):
            draw(asking, extra_body={"think": True})
        assert drawing.seen(Submit) == []


def test_models_say_what_they_do(client: OpenAI) -> None:
    (model,) = client.models.list().data
    tasks = ["chat", "describe_image", "text_to_image", "think_and_draw", "edit_image"]
    assert model.model_extra == {"tasks": tasks, "image_size": f"{SIZE[1]}x{SIZE[0]}"}


# ---- images in chats


def about(*urls: str, text: str = "what?", **more: Any) -> list[Any]:
    parts: list[Any] = [{"type": "text", "text": text}]
    return [
        {"role": "user", "content": [*parts, *({"type": "image_url", "image_url": {"url": u, **more}} for u in urls)]}
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_about_an_image(runtime: ToyRuntime, client: OpenAI, stream: bool) -> None:
    jpeg = file_of(GIVEN, ".jpg")
    for url, seen in ((url_of(PNG), GIVEN), (url_of(jpeg, "jpeg"), pixels_of(base64.b64encode(jpeg).decode()))):
        asked = [{"role": "system", "content": "be brief"}, *about(url, detail="auto")]
        answer = client.chat.completions.create(model=NAME, messages=asked, seed=3, stream=stream)
        said = (
            "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        )
        assert said == f"2 turns, seed 3: what? [40 x 24, {seen.mean():.1f}]"
        assert runtime.seen(Submit)[-1].task == "describe_image"


def test_a_large_image_in_a_chat(client: OpenAI) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (256, 256, 3), np.uint8)
    url = url_of(file_of(noise))
    assert len(url) > 200_000
    answer = client.chat.completions.create(model=NAME, messages=about(url), seed=3)
    assert answer.choices[0].message.content == f"1 turns, seed 3: what? [256 x 256, {noise.mean():.1f}]"


URL = "messages[0].content[1].image_url.url"


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        (about("https://example.com/a.png"), URL, "fetches nothing: send the image itself, as data:image/png;base64"),
        (about("HTTP://example.com/a.png"), URL, "fetches nothing"),
        (about("file:///etc/passwd"), URL, "begins with"),
        (about("data:image/webp;base64,AAAA"), URL, "expected data:image/png;base64 or data:image/jpeg;base64"),
        (about("data:image/png,AAAA"), URL, "begins with"),
        (about("data:image/png;base64,"), URL, "not base64"),
        (about("data:image/png;base64,AAA"), URL, "not base64"),
        (about("data:image/png;base64,AA==AAAA"), URL, "not base64"),
        (about("data:image/png;base64,AA AA\n=="), URL, "not base64"),
        (about("data:image/png;base64,AA-_"), URL, "not base64"),
        (about("data:image/png;base64,ääää"), URL, "not base64"),
        (about(url_of(b"GIF89a")), URL, "not a complete PNG file"),
        (about(url_of(PNG, "jpeg")), URL, "is declared as JPEG, but is a PNG file: declare it as PNG"),
        (about(url_of(PNG), detail="high"), "messages[0].content[1].image_url.detail", "does not serve"),
        (about(url_of(PNG), url_of(PNG)), "messages[0]", "messages[0] has the second of 2 images, models here look at one"),
        ([*about(url_of(PNG)), *about(url_of(PNG))], "messages[1]", "messages[1] has the second of 2 images"),
        ([ASKED, {"role": "assistant", "content": "?"}, *about(url_of(PNG))], "messages[2]", "messages[2] has an image, but"),
        ([{**about(url_of(PNG))[0], "role": "system"}, ASKED], "messages[0]", "messages[0] of 'system' has an image"),
        ([ASKED, {**about(url_of(PNG))[0], "role": "assistant"}], "messages[1]", "of 'assistant' has an image, expected it"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
         "messages[0].content[0].image_url", "expected a JSON object"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].image_url", "a JSON object"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url_of(PNG)}, "text": "x"}]}],
         "messages[0].content[0].text", "not known here"),
    ],
)  # fmt: skip
def test_images_that_a_chat_does_not_take(
    runtime: ToyRuntime, client: OpenAI, messages: Any, param: str | None, message: str
) -> None:
    num_before = len(runtime.seen(Submit))
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(model=NAME, messages=messages)
    assert message in error.value.message
    assert error.value.param == param
    assert len(runtime.seen(Submit)) == num_before


# ---- failures


def breaks(after: int) -> Script:
    async def run(job: Job) -> None:
        for i in range(after):
            denoise(job, GIVEN, i)
        job.fail("UNAVAILABLE", BROKEN)

    return run


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_worker_refuses_is_said_of_fields(runtime: ToyRuntime, client: OpenAI, stream: bool) -> None:
    async def refuses(job: Job) -> None:
        job.fail("INVALID_ARGUMENT", "move guidance_start and guidance_end apart")

    with replaced(runtime, "text_to_image", refuses), pytest.raises(BadRequestError) as error:
        draw(client, stream=stream)
    assert (error.value.param, error.value.code) == ("cfg_interval", "invalid_argument")
    assert "move cfg_interval[0] and cfg_interval[1] apart" in error.value.message


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "partial_images": 3}])
def test_one_that_fails_at_once_is_an_error_and_the_next_is_served(
    runtime: ToyRuntime, client: OpenAI, fields: dict[str, Any]
) -> None:
    with replaced(runtime, "text_to_image", breaks(0)), pytest.raises(InternalServerError, match=BROKEN) as error:
        draw(client, **fields)
    assert error.value.status_code == 503
    assert len(draw(client).data) == 1


def test_one_that_fails_midway_ends_the_stream_with_its_error(runtime: ToyRuntime, client: OpenAI) -> None:
    with replaced(runtime, "text_to_image", breaks(2)):
        events = iter(draw(client, stream=True, partial_images=3))
        assert next(events).type == "image_generation.partial_image"
        with pytest.raises(APIError, match=BROKEN):
            list(events)
        with pytest.raises(InternalServerError, match=BROKEN):
            draw(client)
