"""The world of the small model: the judge is right about real pictures, and nothing that is held out is trained on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from generators.bagel.train import lessons
from mstar_rt.errors import InvalidArgument
from sim_bridge.shapes import (
    COLOURS,
    MAX_SHIFT_PX,
    PLACES,
    RADII,
    SHAPES,
    SIDE_PX,
    Scene,
    caption,
    draw,
    draw_scene,
    held_out_scenes,
    is_held_out,
    judge,
    read_caption,
)

RED_TRIANGLE = Scene("red", "triangle", "white", "left", "small")


def _all_kinds() -> list[Scene]:
    """Every colour, shape and background, at positions, in sizes and with shifts that take turns."""
    rng = np.random.default_rng(0)
    kinds = [kind for kind in itertools.product(COLOURS, SHAPES, COLOURS) if kind[0] != kind[2]]
    return [
        Scene(
            *kind, list(PLACES)[number % 5], list(RADII)[number % 2], tuple(rng.uniform(-MAX_SHIFT_PX, MAX_SHIFT_PX, 2))
        )
        for number, kind in enumerate(kinds)
    ]


def test_the_judge_sees_what_was_drawn() -> None:
    scenes = _all_kinds()
    assert len(scenes) == 450
    wrong = [scene for scene in scenes if not judge(draw(scene)).shows(scene)]
    assert wrong == []


def test_the_judge_sees_it_through_some_noise() -> None:
    rng = np.random.default_rng(0)
    for scene in _all_kinds()[::9]:
        noisy = np.clip(draw(scene) + rng.normal(0, 12, (SIDE_PX, SIDE_PX, 3)), 0, 255).astype(np.uint8)
        assert judge(noisy).shows(scene)


def test_the_judge_accepts_no_other_picture() -> None:
    scenes = held_out_scenes()
    seen = [judge(draw(scene)) for scene in scenes[::2]]
    others = scenes[1::2]
    assert not any(one.shows(other) for one, other in zip(seen, others, strict=True))
    for part, chance in (("colour", 0.1), ("shape", 0.2), ("background", 0.1), ("position", 0.2)):
        share = np.mean([getattr(a, part) == getattr(b, part) for a in seen for b in others])
        assert share == pytest.approx(chance, abs=0.05)


def test_the_judge_sees_nothing_where_nothing_is() -> None:
    assert judge(np.full((SIDE_PX, SIDE_PX, 3), 128, np.uint8)) == Scene("", "", "grey", "", "")
    static = np.random.default_rng(0).integers(0, 256, (SIDE_PX, SIDE_PX, 3)).astype(np.uint8)
    assert judge(static).shape == ""
    pink = np.full((SIDE_PX, SIDE_PX, 3), (255, 150, 200), np.uint8)
    assert judge(pink).background == ""


def test_two_shapes_are_none() -> None:
    both = np.minimum(draw(Scene("black", "circle", "white", "left")), draw(Scene("black", "cross", "white", "right")))
    assert judge(both).shape == ""


@pytest.mark.parametrize("picture", [np.zeros((16, 16, 3), np.uint8), np.zeros((SIDE_PX, SIDE_PX, 3), np.float32)])
def test_the_judge_refuses_other_pictures(picture: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match=r"expected \[32, 32, 3\] uint8"):
        judge(picture)


def test_captions() -> None:
    assert caption(RED_TRIANGLE) == "a small red triangle on white at the left"
    assert caption(replace(RED_TRIANGLE, size="", position="")) == "a red triangle on white"
    assert caption(Scene("orange", "", "", "", "")) == "an orange shape"
    for scene in held_out_scenes():
        assert read_caption(caption(scene)) == scene


def test_captions_in_other_words() -> None:
    wanted = read_caption("Draw a GRAY ring on a black background, in the center.")
    assert wanted == Scene("grey", "ring", "black", "centre", "")
    assert read_caption("a green cross on grey") == Scene("green", "cross", "grey", "", "")
    with pytest.raises(InvalidArgument, match="names no shape and no colour"):
        read_caption("a horse")


def test_held_out_scenes_are_200_and_even() -> None:
    scenes = held_out_scenes()
    assert len(set(scenes)) == 200
    assert all(map(is_held_out, scenes))
    for part, names in (("colour", COLOURS), ("shape", SHAPES), ("background", COLOURS), ("position", PLACES)):
        counts = [sum(getattr(scene, part) == name for scene in scenes) for name in names]
        assert counts == [200 // len(names)] * len(names)


def test_scenes_are_of_their_seed_and_not_held_out() -> None:
    scenes = [draw_scene(np.random.default_rng(seed)) for seed in range(200)]
    assert scenes == [draw_scene(np.random.default_rng(seed)) for seed in range(200)]
    assert not any(map(is_held_out, scenes))
    assert is_held_out(draw_scene(np.random.default_rng(0), held_out=True))


def test_an_edit_changes_one_thing_and_never_to_what_is_held_out() -> None:
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(300):
        before = draw_scene(rng)
        text, after = lessons.edit(before, rng)
        assert not is_held_out(after)
        changed = [part for part in ("colour", "shape", "background") if getattr(before, part) != getattr(after, part)]
        assert len(changed) == 1
        assert getattr(after, changed[0]) in text
        assert (before.position, before.size, before.shift) == (after.position, after.size, after.shift)
        kinds.add(changed[0])
    assert len(kinds) == 3


def test_prompts_ask_for_what_they_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        scene = draw_scene(rng)
        for wanted, text in (lessons.prompt(scene, rng), lessons.vague_prompt(scene, rng)):
            assert read_caption(text) == replace(wanted, shift=(0.0, 0.0))
            assert scene.shows(wanted)
        assert read_caption(lessons.thought(scene)) == replace(scene, shift=(0.0, 0.0))


def test_answers() -> None:
    answers = [lessons.answer(question, RED_TRIANGLE) for question in lessons.QUESTIONS]
    assert answers == ["red", "triangle", "white", "left", "small", caption(RED_TRIANGLE)]
