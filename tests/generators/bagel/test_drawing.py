"""Images alone and batched, what each option does, which contexts there are, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mstar_rt.errors import Internal, InvalidArgument
from tests.models.bagel_requests import (
    ASK,
    DRAW,
    EDIT,
    code_of,
    drawn,
    last,
    picture,
    said,
    text,
    tiny_driver,
    tokens,
)  # fmt: skip
from tests.models.walk_driver import Request, Served, WalkDriver

TOLERANCE = 2e-5
"""Of latents of about 1: rows of a product are equal bit by bit, sums over stored tokens are not."""
SMALL = {"height": 16, "width": 16, "num_denoise_steps": 4, "seed": 1}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> WalkDriver:
    return tiny_driver(tmp_path_factory.mktemp("bagel"))


@pytest.fixture
def driver(shared: WalkDriver) -> Iterator[WalkDriver]:
    shared.share_of = None
    shared.batches.clear()
    yield shared
    assert shared.num_pages_held == 0


def draw(driver: WalkDriver, prompt: str = DRAW, **options: Any) -> Served:
    return driver.run_one("text_to_image", said(prompt), **{**SMALL, **options})


def edit(driver: WalkDriver, prompt: str = EDIT, seed: int = 5, **options: Any) -> Served:
    tensors = {**said(prompt), **picture(seed, 16, 24)}
    return driver.run_one("edit_image", tensors, **{"num_denoise_steps": 3, "seed": 1, **options})


def num_flows(driver: WalkDriver) -> int:
    return sum(bool(outputs["velocity"].numel()) for _, outputs in driver.seen["flow"])


REQUESTS = [
    Request("text_to_image", said(DRAW), {**SMALL, "seed": 3}),
    Request("text_to_image", said("a red cross on blue"), {**SMALL, "width": 24, "text_guidance": 2.5}),
    Request("text_to_image", said("be brief", "a green cross", roles=("system", "user")), {**SMALL, "num_denoise_steps": 6}),
    Request("text_to_image", said(DRAW), {**SMALL, "text_guidance": 1.0, "seed": 4}),
    Request("edit_image", {**said(EDIT), **picture(1, 16, 24)}, {"num_denoise_steps": 5, "seed": 2}),
    Request(
        "edit_image", {**said("make it blue"), **picture(2, 20, 16)},
        {"num_denoise_steps": 3, "seed": 2, "renormalization": "global", "image_guidance": 1.0, "sample_latents": True},
    ),
    Request("edit_image", {**said(EDIT), **picture(3, 16, 16)}, {"num_denoise_steps": 4, "seed": 9, "text_guidance": 1.0}),
    Request("think_and_draw", said("a grey cross"), {**SMALL, "max_tokens": 5, "image_guidance": 1.5}),
    Request("chat", said("what is red"), {"max_tokens": 6, "ignore_end": True}),
    Request("describe_image", {**said(ASK), **picture(4, 24, 24)}, {"max_tokens": 7, "seed": 1, "temperature": 1.0, "ignore_end": True}),
]  # fmt: skip


def assert_equal(got: Served, want: Served) -> None:
    assert got.emitted.keys() == want.emitted.keys()
    if "token" in want.emitted:
        assert tokens(got) == tokens(want)
        assert text(got) == text(want)
    if "image" in want.emitted:
        torch.testing.assert_close(drawn(got), drawn(want), rtol=0, atol=TOLERANCE)
        assert (last(got, "image").int() - last(want, "image").int()).abs().max() <= 1
        assert [int(step) for step in got.emitted["step"]] == list(range(1, len(want.emitted["step"]) + 1))


def test_a_request_gets_the_same_alone_batched_staggered_and_in_parts(driver: WalkDriver) -> None:
    alone = [driver.run(request)[0] for request in REQUESTS]
    images = [drawn(one) for one in alone if "image" in one.emitted]
    assert len({tuple(image.flatten()[:3].tolist()) for image in images}) == len(images)
    for stagger, share in ((0, None), (7, None), (0, 5)):
        driver.share_of = None if share is None else lambda num_left, most=share: min(num_left, most)  # type: ignore[misc]
        for got, want in zip(driver.run(*REQUESTS, stagger=stagger), alone, strict=True):
            assert_equal(got, want)


def test_images_of_unlike_scales_and_sizes_share_steps(driver: WalkDriver) -> None:
    """Those of one size the network's. Scales, interval and norms are those of each image."""
    options = [
        {"text_guidance": 2.0}, {"renormalization": "channel"}, {"image_guidance": 3.0, "guidance_start": 0.0},
        {"text_guidance": 1.0, "timestep_shift": 1.0}, {"width": 24, "renormalization": "none"},
    ]  # fmt: skip
    requests = [Request("text_to_image", said(DRAW), {**SMALL, "seed": 7, **each}) for each in options]
    alone = [driver.run(request)[0] for request in requests]
    driver.batches.clear()
    for got, want in zip(driver.run(*requests), alone, strict=True):
        assert_equal(got, want)
    assert ("flow", 7) in driver.batches
    assert ("guide", 4) in driver.batches


def test_prompts_seeds_and_images_make_other_images(driver: WalkDriver) -> None:
    first = draw(driver)
    torch.testing.assert_close(drawn(draw(driver)), drawn(first), rtol=0, atol=0)
    assert torch.equal(last(draw(driver), "image"), last(first, "image"))
    for other in (draw(driver, "+,-.-"), draw(driver, seed=2)):
        assert (drawn(other) - drawn(first)).abs().max() > 1e-3
    edited = edit(driver)
    torch.testing.assert_close(drawn(edit(driver)), drawn(edited), rtol=0, atol=0)
    for other in (edit(driver, "make it red"), edit(driver, seed=6)):
        assert (drawn(other) - drawn(edited)).abs().max() > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"num_denoise_steps": 5}, {"timestep_shift": 1.0}, {"text_guidance": 3.0}, {"image_guidance": 1.5},
        {"guidance_start": 0.9}, {"guidance_end": 0.9}, {"renormalization": "none"}, {"renormalization": "channel"},
        {"renormalization": "text_channel"}, {"renormalization_min": 0.999},
    ],
)  # fmt: skip
def test_every_option_changes_the_image(driver: WalkDriver, change: dict[str, Any]) -> None:
    for make in (draw, edit):
        usual = {"renormalization": "global", "text_guidance": 4.0, "num_denoise_steps": 4, "guidance_start": 0.0}
        other = {**usual, **change}
        assert (drawn(make(driver, **usual)) - drawn(make(driver, **other))).abs().max() > 1e-4


def test_latents_of_an_edit_are_drawn_if_asked_for(driver: WalkDriver) -> None:
    mean, sampled = edit(driver), edit(driver, sample_latents=True)
    torch.testing.assert_close(drawn(edit(driver, sample_latents=True)), drawn(sampled), rtol=0, atol=0)
    assert (drawn(mean) - drawn(sampled)).abs().max() > 1e-3


def test_sizes_and_what_is_told_on_the_way(driver: WalkDriver) -> None:
    served = draw(driver, height=16, width=40, num_denoise_steps=5, preview_every=2, latents_every=5)
    assert last(served, "image").shape == (16, 40, 3)
    previews = [tuple(preview.shape) for preview in served.emitted["preview"]]
    assert previews == [(0, 0, 3), (16, 40, 3), (0, 0, 3), (16, 40, 3), (0, 0, 3)]
    assert [len(latents) for latents in served.emitted["latents"]] == [0, 0, 0, 0, 40]
    torch.testing.assert_close(last(served, "latents"), drawn(served))
    assert int(last(served, "num_input_tokens")) == len(DRAW) + 2
    edited = driver.run_one("edit_image", {**said(EDIT), **picture(1, 90, 120)}, num_denoise_steps=2, seed=0)
    assert last(edited, "image").shape == (48, 64, 3)
    num_patches = (42 // 14) * (70 // 14)
    assert int(last(edited, "num_input_tokens")) == (12 * 16 + 2) + (num_patches + 2) + (len(EDIT) + 2)


def test_a_plan_is_read_before_it_is_drawn(driver: WalkDriver) -> None:
    """It changes the image; told not to write more than a token, the plan is another one."""
    thought = [driver.run_one("think_and_draw", said(DRAW), **SMALL, max_tokens=most) for most in (1, 9)]
    assert [len(tokens(one)) for one in thought] == [1, 9]
    images = [drawn(one) for one in (*thought, draw(driver))]
    for index, image in enumerate(images):
        assert all((image - other).abs().max() > 1e-3 for other in images[:index])


def test_contexts_that_no_step_looks_from_are_not_there(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many sequences there are while images are made, and how often the network runs."""
    seen: dict[str, int] = {}
    flow = code_of(driver, "flow")
    run = flow.run

    def watched(calls: Any, attention: Any) -> Any:
        seen.update({label: call.sequences.get(label).length for call in calls for label in call.sequences})
        return run(calls, attention)

    monkeypatch.setattr(flow, "run", watched)
    num_text, steps = len(DRAW) + 2, {"num_denoise_steps": 4, "guidance_start": 0.0, "timestep_shift": 1.0}

    def contexts_of(task: str, tensors: dict[str, torch.Tensor], **options: Any) -> tuple[dict[str, int], int]:
        seen.clear()
        driver.seen.clear()
        sizes = {} if task == "edit_image" else {"height": 16, "width": 16}
        driver.run_one(task, tensors, **{**steps, **sizes, **options})
        return dict(seen), num_flows(driver)

    drawing, both = said(DRAW), said("be brief", DRAW, roles=("system", "user"))
    assert contexts_of("text_to_image", drawing) == ({"main": num_text, "cfg_text": 0}, 8)
    assert contexts_of("text_to_image", drawing, guidance_start=0.6) == ({"main": num_text, "cfg_text": 0}, 6)
    assert contexts_of("text_to_image", drawing, text_guidance=1.0, guidance_start=0.4) == ({"main": num_text}, 4)
    assert contexts_of("text_to_image", drawing, image_guidance=2.0) == ({"main": num_text, "cfg_text": 0}, 8)
    lengths, passes = contexts_of("text_to_image", both)
    assert (lengths["main"] - lengths["cfg_text"], passes) == (num_text, 8)

    editing = {**drawing, **picture(1, 16, 16)}
    num_image = 16 + 2 + 4 + 2
    usual = {"main": num_image + num_text, "cfg_text": num_image, "cfg_img": num_text}
    assert contexts_of("edit_image", editing) == (usual, 12)
    for most in (1, 4):
        driver.share_of = lambda num_left, most=most: min(num_left, most)  # type: ignore[misc]
        assert contexts_of("edit_image", editing) == (usual, 12)
    driver.share_of = None
    without = {"image_guidance": "cfg_img", "text_guidance": "cfg_text"}
    for option, label in without.items():
        less = {name: length for name, length in usual.items() if name != label}
        assert contexts_of("edit_image", editing, **{option: 1.0}) == (less, 8)
    alone = {"main": num_image + num_text}
    assert contexts_of("edit_image", editing, text_guidance=1.0, image_guidance=1.0) == (alone, 4)

    lengths, passes = contexts_of("think_and_draw", drawing, max_tokens=3, ignore_end=True, image_guidance=2.0)
    assert lengths.keys() == {"main", "cfg_text", "cfg_img"}
    assert lengths["main"] > lengths["cfg_img"] == lengths["cfg_text"] + num_text
    assert passes == 12


def test_a_context_that_is_missing_is_an_error(driver: WalkDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not an image without guidance."""
    read = code_of(driver, "read_text")
    run = read.run

    def forgetful(calls: Any, attention: Any) -> Any:
        results = run(calls, attention)
        for call in calls:
            call.sequences.release("cfg_text")
        return results

    monkeypatch.setattr(read, "run", forgetful)
    with pytest.raises(Internal, match="the context 'cfg_text' did not come to where 'flow_without_text' runs"):
        draw(driver)
    monkeypatch.setattr(read, "run", run)
    draw(driver)


def test_edits_and_chats_in_between_leave_nothing_behind(driver: WalkDriver) -> None:
    """In any order, in one session or in none."""
    order = [4, 8, 0, 9, 7, 9, 4, 0]
    alone = {index: driver.run(REQUESTS[index])[0] for index in set(order)}
    for session in ("", "one"):
        for index in order:
            request = REQUESTS[index]
            got = driver.run(Request(request.task, request.tensors, request.params, session=session))[0]
            assert_equal(got, alone[index])
    driver.close("one")


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("text_to_image", {"height": 18}, "height is 18, expected a multiple of 4 pixels: the nearest are 16 and 20"),
        ("text_to_image", {"width": 68}, "option 'width' is 68, expected 4 to 64 pixels"),
        ("text_to_image", {"heigth": 16}, "unknown option 'heigth', did you mean 'height'"),
        ("edit_image", {"height": 16}, "unknown option 'height'"),
        ("text_to_image", {"num_denoise_steps": 201}, "expected 1 to 200"),
        ("text_to_image", {"text_guidance": 0.5}, "expected 1 to 100"),
        ("text_to_image", {"timestep_shift": 0.0}, "expected 0.01 to 100"),
        ("text_to_image", {"guidance_start": 0.9, "guidance_end": 0.5}, "none of the 7 denoise steps lies there"),
        ("edit_image", {"guidance_start": 0.9, "guidance_end": 0.5}, "none of the 7 denoise steps lies there"),
        ("text_to_image", {"renormalization": "chanel"}, "expected one of none, global, channel, text_channel"),
        ("text_to_image", {"renormalization": "none", "renormalization_min": 0.5}, "leave one of them out"),
        ("text_to_image", {"preview_every": 8}, "preview_every is 8, but there are 7 denoise steps"),
        ("text_to_image", {"text_guidance": 1.0, "image_guidance": 2.0}, "there is neither an image nor a plan"),
        (
            "text_to_image", {"text_guidance": 1.0, "guidance_start": 0.2},
            "guidance_start is 0.2, but nothing is guided: set text_guidance above 1, or leave guidance_start out",
        ),
        (
            "edit_image", {"text_guidance": 1.0, "image_guidance": 1.0, "renormalization": "global"},
            "renormalization is 'global', but nothing is guided",
        ),
        ("think_and_draw", {"text_guidance": 1.0, "guidance_end": 0.9}, "guidance_end is 0.9, but nothing is guided"),
        (
            "edit_image", {"text_guidance": 1.0, "renormalization_min": 0.5},
            "renormalization_min is 0.5, but renormalization is 'text_channel' and the text guides nothing",
        ),
        ("text_to_image", {"num_denoise_steps": 1, "timestep_shift": 2.0}, "timestep_shift is 2, but the only"),
        ("text_to_image", {"sample_latents": True}, "unknown option 'sample_latents'"),
        ("chat", {"height": 16}, "unknown option 'height'"),
        ("chat", {"stop": "x"}, "'stop' is not JSON"),
        ("think_and_draw", {"max_tokens": 500}, "together over the 510"),
        ("describe_image", {"max_tokens": 500}, "the conversation, with its image, has 13 tokens and max_tokens is 500,"),
    ],
)  # fmt: skip
def test_options_that_are_refused(driver: WalkDriver, task: str, options: dict[str, Any], message: str) -> None:
    tensors = {**said(DRAW), **(picture(1, 16, 16) if task in ("edit_image", "describe_image") else {})}
    with pytest.raises(InvalidArgument, match=message):
        driver.run_one(task, tensors, **options)


def test_a_default_that_leaves_no_room_is_said_to_be_one(driver: WalkDriver) -> None:
    long = said("a" * 300)
    for task, tensors, default, left in (
        ("chat", long, 255, 210), ("describe_image", {**long, **picture(1, 16, 16)}, 255, 204),
        ("think_and_draw", long, 256, 194),
    ):  # fmt: skip
        message = rf"max_tokens is {default} \(the default\), .*: shorten it, or set max_tokens to {left} or less"
        with pytest.raises(InvalidArgument, match=message):
            driver.run_one(task, tensors)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (said("a", "b", roles=("user", "user")), "has turns of user, user, but an image is made of one turn"),
        (said("a", "b", "c", roles=("user", "assistant", "user")), "leave the others out"),
        (said("a", "b", roles=("user", "system")), "has turns of user, system"),
        (said("a<|im_end|>b"), "has '<\\|im_end\\|>' in it"),
        (said("a<|vision_start|>b"), "has '<\\|vision_start\\|>' in it"),
        (said("a" * 600), "has 602 tokens, over the 512"),
        ({}, "'conversation' is missing"),
    ],
)
def test_requests_that_are_refused(driver: WalkDriver, tensors: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        driver.run_one("text_to_image", tensors)


def test_images_that_are_refused(driver: WalkDriver) -> None:
    for image, message in (
        (torch.zeros(1, 40, 3, dtype=torch.uint8), "the image has 1 x 40 pixels, its longer side is 40.0 times"),
        (torch.zeros(4, 4, 4, dtype=torch.uint8), "shape"),
        (torch.zeros(4, 4, 3), "dtype float32, expected uint8"),
        (torch.zeros(4097, 1, 3, dtype=torch.uint8), "the limit of this model is 4096"),
    ):
        for task in ("edit_image", "describe_image"):
            with pytest.raises(InvalidArgument, match=message):
                driver.run_one(task, {**said(EDIT), "image": image})


def test_answers_go_on_until_the_end_or_a_stop(driver: WalkDriver) -> None:
    usual = {"max_tokens": 20, "seed": 3, "temperature": 1.5, "ignore_end": True}
    whole = driver.run_one("chat", said("hello"), **usual)
    assert len(tokens(whole)) == 20
    letter = next(each for each in text(whole)[3:] if each.isascii() and each.isprintable())
    stopped = driver.run_one("chat", said("hello"), **usual, stop=f'["{letter}"]')
    assert text(stopped) == text(whole)[: text(whole).index(letter)]
    assert int(last(stopped, "reason")) == 2
    turns = said("hello", "hi", "a cross", roles=("user", "assistant", "user"))
    assert int(last(driver.run_one("chat", turns, max_tokens=2), "num_input_tokens")) > 12


def test_the_warm_up_s_zeros_are_answered(driver: WalkDriver) -> None:
    nothing, black = (
        {"conversation": torch.zeros(1, dtype=torch.uint8)},
        {"image": torch.zeros(1, 1, 3, dtype=torch.uint8)},
    )
    for task in driver.loaded.model.tasks:
        tensors = {**nothing, **(black if any(spec.name == "image" for spec in task.inputs) else {})}
        names = {param.name for param in task.params}
        few = {name: value for name, value in (("max_tokens", 3), ("num_denoise_steps", 2)) if name in names}
        served = driver.run_one(task.name, tensors, **few)
        assert served.emitted.keys() == {spec.name for spec in task.outputs}
