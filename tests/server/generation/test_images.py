"""Generation.Generate for images over real gRPC: progress and images as they are made, seeds, refusals, taking back."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
from toy_painter import (
    MAX_SIDE,
    NUM_STEPS,
    PLAN,
    SIZE,
    endless_steps,
    latents_of,
    painter,
    painting_runtime,
    picture_of,
    preview_of,
)
from toy_runtime import Job, Script, ToyRuntime

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import CancelRequest, Submit
from mstar_rt.model import ParamSpec
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import generation_pb2_grpc, request_pb2, tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.server.generation.image_requests import MAX_NUM_IMAGES, refuse_misplaced
from mstar_rt.server.request_stream import Emission, RequestStream

USER, ASSISTANT, SYSTEM = wire.Turn.ROLE_USER, wire.Turn.ROLE_ASSISTANT, wire.Turn.ROLE_SYSTEM
RAW, PNG, JPEG = tensor_pb2.Image.ENCODING_RAW, tensor_pb2.Image.ENCODING_PNG, tensor_pb2.Image.ENCODING_JPEG
GIVEN = np.random.default_rng(3).integers(0, 256, (40, 24, 3), np.uint8)
PROMPT = "a red barn"
DRAW, THINK, EDIT = "text_to_image", "think_and_draw", "edit_image"


@pytest.fixture
def painting() -> Iterator[ToyRuntime]:
    with painting_runtime() as running:
        yield running


@pytest.fixture
def generate(painting: ToyRuntime) -> Iterator[Any]:
    with grpc.insecure_channel(painting.address) as channel:
        yield generation_pb2_grpc.GenerationStub(channel).Generate


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[Any, ToyRuntime]]:
    """For requests that never reach the runtime."""
    with painting_runtime() as running, grpc.insecure_channel(running.address) as channel:
        yield generation_pb2_grpc.GenerationStub(channel).Generate, running


def raw(pixels: np.ndarray) -> tensor_pb2.Image:
    height, width, channels = pixels.shape
    return tensor_pb2.Image(encoding=RAW, data=pixels.tobytes(), height=height, width=width, channels=channels)


def png(pixels: np.ndarray) -> tensor_pb2.Image:
    data = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()
    return tensor_pb2.Image(encoding=PNG, data=data)


def turn(text: str = PROMPT, image: tensor_pb2.Image | None = None, role: wire.Turn.Role = USER) -> wire.Turn:
    parts = [wire.Part(text=text)] if text else []
    return wire.Turn(role=role, parts=[*parts, *([] if image is None else [wire.Part(image=image)])])


def request(task: str | None = DRAW, image: tensor_pb2.Image | None = None, **fields: Any) -> wire.GenerateRequest:
    """`fields` that are of ImageOptions go there."""
    known = wire.ImageOptions.DESCRIPTOR.fields_by_name
    options = {name: fields.pop(name) for name in list(fields) if name in known}
    usual = {"model": "painter", "task": task, "turns": [turn(image=image)], "image": wire.ImageOptions(**options)}
    return wire.GenerateRequest(**{**usual, **fields})


def pixels_of(image: tensor_pb2.Image) -> np.ndarray:
    if image.encoding == RAW:
        return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, image.channels)
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(image.data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def images_of(answers: list[wire.GenerateResponse]) -> dict[int, wire.ImageResult]:
    return {each.image.image_index: each.image for each in answers if each.WhichOneof("answer") == "image"}


def params_of(runtime: ToyRuntime) -> list[dict[str, Any]]:
    return [submit.params for submit in runtime.seen(Submit)]


# ---- images


def test_progress_comes_and_then_the_image(generate: Any, painting: ToyRuntime) -> None:
    *progress, image, last = list(generate(request(seed=7)))
    assert [(each.progress.step, each.progress.num_steps) for each in progress] == [(i + 1, 6) for i in range(6)]
    assert not any(each.progress.HasField("preview") or each.progress.HasField("latents") for each in progress)
    (params,) = params_of(painting)
    assert (params["seed"], image.image.seed) == (7, 7)
    np.testing.assert_array_equal(pixels_of(image.image.image), picture_of(PROMPT, params))
    made = image.image.image
    assert (made.encoding, made.height, made.width, made.channels) == (PNG, *SIZE, 3)
    done = last.done
    assert (done.reason, done.num_input_tokens, done.num_output_tokens) == (1, len(PROMPT), 0)
    assert done.timing.total_us > done.timing.encode_us > 0
    (submit,) = painting.seen(Submit)
    assert (submit.request_id, submit.task, submit.criticality) == (done.request_id, DRAW, "generation")


def test_previews_and_latents_where_they_are_due(generate: Any) -> None:
    *progress, image, _ = list(generate(request(preview_every=4, latents_every=3, encoding=RAW)))
    pixels = pixels_of(image.image.image)
    for each in progress:
        step = each.progress.step
        assert each.progress.HasField("preview") == (step == 4)
        assert each.progress.HasField("latents") == (step in (3, 6))
        if step == 4:
            np.testing.assert_array_equal(pixels_of(each.progress.preview), preview_of(pixels, 4))
        if step == 6:
            np.testing.assert_array_equal(array_from_tensor(each.progress.latents, "latents"), latents_of(6))


@pytest.mark.parametrize(("encoding", "tolerance"), [(PNG, 0), (RAW, 0), (JPEG, 60)])
def test_encodings(generate: Any, painting: ToyRuntime, encoding: Any, tolerance: int) -> None:
    *_, image, _ = list(generate(request(encoding=encoding, height=16, width=64)))
    made = pixels_of(image.image.image)
    expected = picture_of(PROMPT, params_of(painting)[0])
    assert (image.image.image.encoding, made.shape) == (encoding, (16, 64, 3))
    assert np.abs(made.astype(int) - expected).mean() <= tolerance


def test_large_images_are_compressed_elsewhere(generate: Any, painting: ToyRuntime) -> None:
    *_, image, _ = list(generate(request(height=MAX_SIDE, width=MAX_SIDE)))
    np.testing.assert_array_equal(pixels_of(image.image.image), picture_of(PROMPT, params_of(painting)[0]))


def test_every_option_reaches_the_model(generate: Any, painting: ToyRuntime) -> None:
    options = {
        "height": 24, "width": 40, "text_guidance": 5.0, "image_guidance": 2.0, "guidance_start": 0.25,
        "guidance_end": 0.75, "num_denoise_steps": 3, "timestep_shift": 2.0, "renormalization_min": 0.5,
        "preview_every": 2, "latents_every": 3,
    }  # fmt: skip
    given = wire.ImageOptions.RENORMALIZATION_TEXT_CHANNEL
    list(generate(request(**options, renormalization=given, seed=1)))
    assert params_of(painting) == [{**options, "renormalization": "text_channel", "seed": 1}]
    answers = list(generate(request(model_options={"num_denoise_steps": request_pb2.OptionValue(integer=2)})))
    assert [each.progress.num_steps for each in answers if each.WhichOneof("answer") == "progress"] == [2, 2]


def test_a_system_turn_goes_along(generate: Any, painting: ToyRuntime) -> None:
    *_, last = list(generate(request(turns=[turn("in oil", role=SYSTEM), turn()])))
    assert last.done.num_input_tokens == len("in oil") + len(PROMPT)


def test_edits_have_their_image(generate: Any, painting: ToyRuntime) -> None:
    for sent in (raw(GIVEN), png(GIVEN)):
        *_, image, _ = list(generate(request(EDIT, sent, seed=3)))
        expected = picture_of(PROMPT, params_of(painting)[-1], GIVEN)
        np.testing.assert_array_equal(pixels_of(image.image.image), expected)


def test_a_plan_comes_first(generate: Any, painting: ToyRuntime) -> None:
    for task, more in ((THINK, {}), (DRAW, {"think": True}), (None, {"think": True}), (THINK, {"think": True})):
        answers = list(generate(request(task, **more)))
        kinds = [each.WhichOneof("answer") for each in answers]
        assert kinds == ["text"] * len(PLAN) + ["progress"] * NUM_STEPS + ["image", "done"]
        assert "".join(each.text.text for each in answers) == PLAN
        assert all(each.text.thought for each in answers[: len(PLAN)])
        assert answers[-1].done.num_output_tokens == len(PLAN)
        assert painting.seen(Submit)[-1].task == THINK
    *_, last = list(generate(request(THINK, text=wire.TextOptions(max_tokens=5))))
    assert (last.done.reason, last.done.num_output_tokens) == (wire.GenerateDone.REASON_MAX_TOKENS, 5)


# ---- which task


@pytest.mark.parametrize(
    ("model", "asked", "task"),
    [
        (painter(), request(None, height=16), DRAW),
        (painter(), request(None, raw(GIVEN), preview_every=1), EDIT),
        (painter(chats=False), request(None), DRAW),
        (painter(chats=False), request(None, raw(GIVEN)), EDIT),
        (painter(), request("chat", raw(GIVEN)), "describe_image"),
        (painter(), request("describe_image", raw(GIVEN)), "describe_image"),
        (painter(), request("chat"), "chat"),
    ],
)
def test_the_task_that_is_meant(model: Any, asked: wire.GenerateRequest, task: str) -> None:
    with painting_runtime(model=model) as running, grpc.insecure_channel(running.address) as channel:
        answers = list(generation_pb2_grpc.GenerationStub(channel).Generate(asked))
        assert answers[-1].WhichOneof("answer") == "done"
        assert [submit.task for submit in running.seen(Submit)] == [task]


def test_a_question_about_an_image(generate: Any) -> None:
    turns = [turn("be brief", role=SYSTEM), turn("what?", png(GIVEN)), turn("a barn", role=ASSISTANT), turn("how big?")]
    *pieces, last = list(generate(request("chat", turns=turns, seed=3, image=None)))
    said = "".join(each.text.text for each in pieces)
    assert said == f"4 turns, seed 3: how big? [40 x 24, {GIVEN.mean():.1f}]"
    assert not any(each.text.thought for each in pieces)
    assert last.done.reason == wire.GenerateDone.REASON_END


# ---- seeds and several images


def test_equal_seeds_are_equal_and_none_is_fresh(generate: Any) -> None:
    made = [images_of(list(generate(request(**fields))))[0] for fields in ({"seed": 5}, {"seed": 5}, {}, {})]
    first, again, fresh, fresher = (each.image.data for each in made)
    assert first == again
    assert len({first, fresh, fresher}) == 3
    assert images_of(list(generate(request(seed=made[2].seed))))[0].image.data == fresh


def test_image_i_is_what_seed_plus_i_makes_alone(generate: Any, painting: ToyRuntime) -> None:
    answers = list(generate(request(num_images=3, seed=5, preview_every=2)))
    images = images_of(answers)
    assert {index: image.seed for index, image in images.items()} == {0: 5, 1: 6, 2: 7}
    assert [each.WhichOneof("answer") for each in answers].count("done") == 1
    assert answers[-1].done.num_input_tokens == len(PROMPT)
    assert [submit.num_together for submit in painting.seen(Submit)] == [3, 3, 3]
    ids = [submit.request_id for submit in painting.seen(Submit)]
    assert ids == [answers[-1].done.request_id + suffix for suffix in ("", "-1", "-2")]
    for index in range(3):
        alone = images_of(list(generate(request(seed=5 + index, preview_every=2))))[0]
        assert alone.image.data == images[index].image.data
        steps = [each.progress.step for each in answers if each.progress.step and each.progress.image_index == index]
        assert steps == list(range(1, NUM_STEPS + 1))


def test_several_plans_are_told_apart(generate: Any) -> None:
    answers = list(generate(request(THINK, num_images=2)))
    for index in range(2):
        assert "".join(each.text.text for each in answers if each.text.image_index == index) == PLAN
    assert answers[-1].done.num_output_tokens == 2 * len(PLAN)


def test_several_run_at_once(generate: Any, painting: ToyRuntime) -> None:
    painting.script(DRAW, endless_steps(1))
    call = generate(request(num_images=4))
    assert {next(call).progress.image_index for _ in range(4)} == {0, 1, 2, 3}
    call.cancel()
    painting.wait_for(CancelRequest, 4)
    painting.wait_until_nothing_is_held()


# ---- what is refused


TALK = wire.SpeechOptions(voice="amy")
WRONG = [
    (request("text_to_imag"), "NOT_FOUND", ["did you mean 'text_to_image'"]),
    (request(None), "INVALID_ARGUMENT", ["several tasks", "chat, describe_image, text_to_image"]),
    (request(turns=[]), "INVALID_ARGUMENT", ["one turn of the user", "no turns"]),
    (request(turns=[turn(), turn()]), "INVALID_ARGUMENT", ["has user, user"]),
    (request(turns=[turn(role=SYSTEM)]), "INVALID_ARGUMENT", ["has system"]),
    (request(turns=[turn(), turn(role=ASSISTANT)]), "INVALID_ARGUMENT", ["has user, assistant"]),
    (request(turns=[turn(" ")]), "INVALID_ARGUMENT", ["no word"]),
    (request(turns=[turn("x" * 5000)]), "INVALID_ARGUMENT", ["5004 characters", "4096"]),
    (request(DRAW, raw(GIVEN)), "INVALID_ARGUMENT", ["of text only"]),
    (request(THINK, raw(GIVEN)), "INVALID_ARGUMENT", ["of text only"]),
    (request(EDIT), "INVALID_ARGUMENT", ["edits an image", "has none"]),
    (request("describe_image", image=None), "INVALID_ARGUMENT", ["looks at an image"]),
    (request("chat", raw(GIVEN), height=5), "INVALID_ARGUMENT", ["no options of images", "height"]),
    (request(EDIT, raw(GIVEN), think=True), "INVALID_ARGUMENT", ["does not think before it edits"]),
    (request(THINK, think=False), "INVALID_ARGUMENT", ["`think` is false"]),
    (request(EDIT, raw(GIVEN), height=16), "INVALID_ARGUMENT", ["height", "an edit has the size of its image"]),
    (
        request(EDIT, raw(GIVEN), text=wire.TextOptions(max_tokens=3)),
        "INVALID_ARGUMENT",
        ["does not write before it edits"],
    ),
    (
        request(DRAW, text=wire.TextOptions(max_tokens=3)),
        "INVALID_ARGUMENT",
        ["max_tokens is of the plan", "set `think`"],
    ),
    (request(DRAW, speech=TALK), "INVALID_ARGUMENT", ["options of speech", "voice"]),
    (request(EDIT, raw(GIVEN[:0])), "INVALID_ARGUMENT", ["image"]),
    (request(EDIT, raw(GIVEN[..., :1])), "INVALID_ARGUMENT", ["[H=40, W=24, 3]"]),
    (request(EDIT, raw(np.zeros((MAX_SIDE + 1, 8, 3), np.uint8))), "INVALID_ARGUMENT", ["H = 257", "256"]),
    (request(EDIT, tensor_pb2.Image(encoding=PNG, data=b"\x89PNG")), "INVALID_ARGUMENT", ["not a complete PNG"]),
    (request(EDIT, tensor_pb2.Image()), "INVALID_ARGUMENT", ["image"]),
    (request(EDIT, turns=[turn("x", raw(GIVEN), SYSTEM), turn()]), "INVALID_ARGUMENT", ["'system'"]),
    (
        request(EDIT, turns=[wire.Turn(role=USER, parts=[wire.Part(image=raw(GIVEN))] * 2)]),
        "INVALID_ARGUMENT",
        ["2 images"],
    ),
    (
        request("chat", turns=[turn(), turn("b", role=ASSISTANT), turn("c", raw(GIVEN))], image=None),
        "INVALID_ARGUMENT",
        ["turn 2", "first turn"],
    ),
    (request(num_images=0), "INVALID_ARGUMENT", ["num_images is 0", f"1 to {MAX_NUM_IMAGES}"]),
    (request(num_images=MAX_NUM_IMAGES + 1), "INVALID_ARGUMENT", ["num_images is 17"]),
    (request(num_images=2, seed=2**63 - 1), "INVALID_ARGUMENT", ["seed + 1"]),
    (request(seed=2**63), "INVALID_ARGUMENT", ["seed is 9223372036854775808, expected 0 to 9223372036854775807"]),
    (request(encoding=9), "INVALID_ARGUMENT", ["encoding 9"]),
    (request(renormalization=9), "INVALID_ARGUMENT", ["renormalization 9", "text_channel"]),
    (request(num_denoise_steps=0), "INVALID_ARGUMENT", ["num_denoise_steps"]),
    (request(guidance_start=float("nan")), "INVALID_ARGUMENT", ["guidance_start"]),
    (request(text_guidance=0.5), "INVALID_ARGUMENT", ["text_guidance"]),
    (request(model_options={"spice": request_pb2.OptionValue(flag=True)}), "INVALID_ARGUMENT", ["spice"]),
    (request(model_options={"seed": request_pb2.OptionValue(text="x")}), "INVALID_ARGUMENT", ["'seed'"]),
    (
        request(height=16, model_options={"height": request_pb2.OptionValue(integer=2)}),
        "INVALID_ARGUMENT",
        ["'height'", "twice"],
    ),
    (request(options=request_pb2.RequestOptions(budget_ms=-1)), "INVALID_ARGUMENT", ["budget_ms"]),
]


@pytest.mark.parametrize(("asked", "code", "words"), WRONG)
def test_what_does_not_fit_is_refused(
    refusing: tuple[Any, ToyRuntime], asked: wire.GenerateRequest, code: str, words: list[str]
) -> None:
    generate, runtime = refusing
    with pytest.raises(grpc.RpcError) as failure:
        next(generate(asked))
    assert failure.value.code().name == code
    for word in words:
        assert word in failure.value.details()
    assert runtime.seen(Submit) == []


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (painter(edits=False), request(EDIT, raw(GIVEN)), "did you mean|known"),
        (painter(edits=False), request(None, raw(GIVEN), height=16), "does not edit images"),
        (painter(draws=False), request(None, seed=1, encoding=RAW), "edits images only"),
        (painter(thinks=False), request(DRAW, think=True), "does not think before it draws"),
        (painter(chats=False), request("chat"), "known"),
    ],
)
def test_what_a_model_has_no_task_for(model: Any, asked: wire.GenerateRequest, words: str) -> None:
    with (
        painting_runtime(model=model) as running,
        grpc.insecure_channel(running.address) as channel,
        pytest.raises(grpc.RpcError, match=words),
    ):
        next(generation_pb2_grpc.GenerationStub(channel).Generate(asked))


def test_an_option_of_edits_only_is_refused_as_such() -> None:
    usual, own = painter(), ParamSpec("sample_latents", "bool", False, "")
    tasks = [replace(task, params=(*task.params, own)) if task.name == EDIT else task for task in usual.tasks]
    model = replace(usual, tasks=tuple(tasks))
    refuse_misplaced(model, EDIT, ["sample_latents"])
    for task in (DRAW, THINK):
        with pytest.raises(InvalidArgument, match="sample_latents is of edits only: leave it out, or give an image"):
            refuse_misplaced(model, task, ["sample_latents"])


# ---- ends


@pytest.mark.parametrize("num_images", [1, 3])
def test_who_leaves_between_steps_leaves_nothing(generate: Any, painting: ToyRuntime, num_images: int) -> None:
    painting.script(DRAW, endless_steps(3))
    call = generate(request(num_images=num_images, preview_every=1))
    for _ in range(3):
        assert next(call).WhichOneof("answer") == "progress"
    call.cancel()
    cancelled = painting.wait_for(CancelRequest, num_images)
    assert {each.request_id for each in cancelled} == {each.request_id for each in painting.seen(Submit)}
    painting.wait_until_nothing_is_held()


def fails(after: int) -> Script:
    """The image with the first seed after so many steps; the others never end by themselves."""

    async def run(job: Job) -> None:
        await endless_steps(after)(job) if job.submit.params["seed"] != 5 else None
        for i in range(after):
            job.emit("step", np.array(i + 1, np.int64), (i,))
        job.fail("INTERNAL", "the autoencoder broke")

    return run


@pytest.mark.parametrize("after", [0, 1, 4])
def test_one_that_fails_takes_the_others_back(generate: Any, painting: ToyRuntime, after: int) -> None:
    painting.script(DRAW, fails(after))
    with pytest.raises(grpc.RpcError) as failure:
        list(generate(request(num_images=3, seed=5)))
    assert (failure.value.code(), failure.value.details()) == (grpc.StatusCode.INTERNAL, "the autoencoder broke")
    assert len(painting.wait_for(CancelRequest, 2)) == 2
    painting.wait_until_nothing_is_held()


def test_one_that_cannot_start_takes_the_others_back(generate: Any, painting: ToyRuntime) -> None:
    submit, num = painting.dispatcher.submit, 0

    def full(*args: Any, **fields: Any) -> Any:
        nonlocal num
        num += 1
        if num == 3:
            raise RuntimeError("no room")
        return submit(*args, **fields)

    painting.dispatcher.submit = full  # type: ignore[method-assign]
    painting.script(DRAW, endless_steps(0))
    with pytest.raises(grpc.RpcError) as failure:
        list(generate(request(num_images=3)))
    assert failure.value.code() == grpc.StatusCode.INTERNAL
    assert len(painting.wait_for(CancelRequest, 2)) == 2


def test_an_error_of_any_stage_ends_the_call_and_nothing_else(generate: Any, painting: ToyRuntime) -> None:
    def breaks(stage: str) -> Script:
        async def run(job: Job) -> None:
            if stage in ("decode", "image_gen", "vae_decode"):
                job.emit("text", np.frombuffer(b"x", np.uint8), (0,))
            if stage in ("image_gen", "vae_decode"):
                job.emit("step", np.array(1, np.int64), (0,))
            job.fail("INTERNAL", f"{stage} broke")

        return run

    working = painting.scripts[THINK]
    for stage in ("prefill_text", "decode", "image_gen", "vae_decode"):
        painting.script(THINK, breaks(stage))
        with pytest.raises(grpc.RpcError, match=f"{stage} broke"):
            list(generate(request(THINK), timeout=10))
        painting.script(THINK, working)
        assert list(generate(request(THINK)))[-1].WhichOneof("answer") == "done"


def test_a_model_that_ends_without_an_image_is_at_fault(generate: Any, painting: ToyRuntime) -> None:
    async def nothing(job: Job) -> None:
        job.finish()

    painting.script(DRAW, nothing)
    with pytest.raises(grpc.RpcError, match="finished without an image"):
        list(generate(request()))


def test_hundreds_that_fail_leave_no_memory(generate: Any, painting: ToyRuntime) -> None:
    """Each holds 200 kB of image where the server puts inputs, and gets another that is not the whole answer."""

    async def half(job: Job) -> None:
        job.emit("image", job.inputs.pop("image"))
        await asyncio.sleep(0)
        job.fail("INTERNAL", "the end is missing")

    painting.script(EDIT, half)
    asked = request(EDIT, raw(np.zeros((MAX_SIDE, MAX_SIDE, 3), np.uint8)), num_images=MAX_NUM_IMAGES)

    def resident_after(num_requests: int) -> int:
        for _ in range(num_requests // MAX_NUM_IMAGES):
            with pytest.raises(grpc.RpcError, match="the end is missing"):
                list(generate(asked))
        painting.wait_until_nothing_is_held()
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    first, second, third = (resident_after(256) for _ in range(3))
    # The C library gathers what it keeps; what is lost is lost each time, 50 MB of it.
    assert min(second - first, third - second) < 25 << 20
    assert len(painting.seen(Submit)) == 768
    # Those of the last call are there as long as gRPC has its error at hand.
    assert sum(type(each) in (RequestStream, Emission) for each in gc.get_objects()) < 5 * MAX_NUM_IMAGES


def test_the_deadline_goes_to_all_of_them(generate: Any, painting: ToyRuntime) -> None:
    asked = request(num_images=2, options=request_pb2.RequestOptions(budget_ms=5_000))
    list(generate(asked))
    first, second = (submit.deadline_ns for submit in painting.seen(Submit))
    assert first == second is not None

    async def too_late(job: Job) -> None:
        job.emit("step", np.array(1, np.int64), (0,))
        await asyncio.sleep(0)
        job.fail("DEADLINE_EXCEEDED", "the time is over")

    painting.script(DRAW, too_late)
    with pytest.raises(grpc.RpcError) as failure:
        list(generate(asked))
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
