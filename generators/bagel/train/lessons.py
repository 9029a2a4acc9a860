"""What is said about pictures: prompts, edits, questions and answers, prompts that a thought completes. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim_bridge.shapes import COLOURS, PLACES, RADII, SHAPES, Scene, caption, is_held_out

QUESTIONS = {
    "what colour is the shape?": "colour",
    "what shape is it?": "shape",
    "what colour is the background?": "background",
    "where is it?": "position",
    "how large is it?": "size",
    "what is in the picture?": "",
}
"""What each asks for; the last wants everything."""
CHAT = {
    "hello": "hello",
    "who are you?": "a small model of shapes",
    "what can you draw?": "a circle a square a triangle a cross or a ring",
    "which colours are there?": "red green blue yellow purple orange cyan black white and grey",
    "where can it be?": "at the left at the right at the top at the bottom or at the centre",
    "how large can it be?": "small or large",
}
_SHARE_OF_VAGUE = 0.12
_SHARE_OF_LONG = 0.2


class Edit(NamedTuple):
    text: str
    after: Scene


def prompt(scene: Scene, rng: np.random.Generator) -> tuple[Scene, str]:
    """What of a scene is asked for, and in which words: mostly its colour, shape and background, and at times more."""
    asked = replace(
        scene,
        size=scene.size if rng.random() < 0.4 else "",
        position=scene.position if rng.random() < 0.5 else "",
    )
    if rng.random() < _SHARE_OF_VAGUE:
        asked = _vague(asked, rng)
    return asked, _phrased(asked, rng)


def vague_prompt(scene: Scene, rng: np.random.Generator) -> tuple[Scene, str]:
    """What a thought completes: what of the scene is asked for, and in which words."""
    asked = _vague(replace(scene, size="", position=scene.position if rng.random() < 0.2 else ""), rng)
    return asked, _phrased(asked, rng)


def thought(scene: Scene) -> str:
    """The whole picture, in words."""
    return caption(scene)


def edit(scene: Scene, rng: np.random.Generator) -> Edit:
    """One thing of it changes, and not to what is held out."""
    while True:
        match rng.integers(3):
            case 0:
                colour = str(rng.choice(list(COLOURS)))
                change = Edit(f"make it {colour}", replace(scene, colour=colour))
            case 1:
                shape = str(rng.choice(SHAPES))
                change = Edit(f"make it a {shape}", replace(scene, shape=shape))
            case _:
                background = str(rng.choice(list(COLOURS)))
                change = Edit(f"make the background {background}", replace(scene, background=background))
        after = change.after
        if after != scene and after.colour != after.background and not is_held_out(after):
            return change


def answer(question: str, scene: Scene) -> str:
    asked = QUESTIONS[question]
    return str(getattr(scene, asked)) if asked else caption(scene)


def all_texts() -> list[str]:
    """Every word that is used, once at least."""
    names = [*COLOURS, *SHAPES, *PLACES, *RADII]
    rng = np.random.default_rng(0)
    phrased = [_phrased(Scene("red", "ring", "grey"), rng) for _ in range(50)]
    edits = [edit(Scene("red", "ring", "grey"), rng).text for _ in range(50)]
    return [*names, *phrased, *edits, "a an shape", *QUESTIONS, *CHAT, *CHAT.values()]


def _vague(scene: Scene, rng: np.random.Generator) -> Scene:
    """The same, but one or two of its colour, shape and background are left open."""
    left_open = rng.choice(["colour", "shape", "background"], rng.integers(1, 3), replace=False)
    changes: dict[str, Any] = dict.fromkeys(map(str, left_open), "")
    return replace(scene, **changes)


def _phrased(scene: Scene, rng: np.random.Generator) -> str:
    text = caption(scene)
    if scene.background and rng.random() < _SHARE_OF_LONG:
        article = "an" if scene.background[0] in "aeiou" else "a"
        text = text.replace(f" on {scene.background}", f" on {article} {scene.background} background")
    return f"draw {text}" if rng.random() < _SHARE_OF_LONG else text
