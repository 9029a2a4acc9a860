"""Pictures of one shape on a plain background, what is said about them, and a judge that sees what is in one.

The small model that ships draws them. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mstar_rt.errors import InvalidArgument

SIDE_PX = 32
COLOURS = {
    "red": (220, 30, 30), "green": (30, 150, 50), "blue": (35, 70, 220), "yellow": (245, 220, 40),
    "purple": (140, 40, 170), "orange": (250, 140, 20), "cyan": (40, 200, 220), "black": (0, 0, 0),
    "white": (255, 255, 255), "grey": (128, 128, 128),
}  # fmt: skip
"""RGB of every colour that a shape or a background has."""
SHAPES = ("circle", "square", "triangle", "cross", "ring")
PLACES = {
    "centre": (16.0, 16.0),
    "left": (10.0, 16.0),
    "right": (22.0, 16.0),
    "top": (16.0, 10.0),
    "bottom": (16.0, 22.0),
}
"""Middle of a shape by its position: pixels from the left and from the top."""
RADII = {"small": 6.0, "large": 9.0}
"""Pixels from the middle of a shape to about its edge, by its size."""
MAX_SHIFT_PX = 1.0

_MAX_COLOUR_DISTANCE = 80.0
"""From a colour's RGB: what is further away has none of these colours."""
_MIN_CONTRAST = 40.0
_MIN_OVERLAP = 0.7
_SPELLINGS = {"gray": "grey", "center": "centre"}


@dataclass(frozen=True)
class Scene:
    """What is in a picture, in the words above. In the picture the shape is `shift` pixels (right, down) from the place
    of its position, at most MAX_SHIFT_PX. Where a judge does not see one of these it says "", as does a caption that
    leaves it open."""

    colour: str
    shape: str
    background: str
    position: str = "centre"
    size: str = "large"
    shift: tuple[float, float] = (0.0, 0.0)

    def shows(self, wanted: Scene) -> bool:
        """Whether everything that is wanted is here; what is "" there may be anything."""
        return all(
            getattr(wanted, name) in ("", getattr(self, name))
            for name in ("colour", "shape", "background", "position", "size")
        )


def draw(scene: Scene) -> NDArray[np.uint8]:
    """[32, 32, 3] uint8, RGB, edges anti-aliased."""
    x, y = (place + shift for place, shift in zip(PLACES[scene.position], scene.shift, strict=True))
    share = _coverage(scene.shape, np.array(RADII[scene.size]), np.array(x), np.array(y))[..., None]
    colour, background = np.array(COLOURS[scene.colour], float), np.array(COLOURS[scene.background], float)
    return np.rint(background + (colour - background) * share).astype(np.uint8)


def is_held_out(scene: Scene) -> bool:
    """Whether training never sees this colour, shape and background together: one background of each colour and
    shape, and each background as often."""
    colours = list(COLOURS)
    number = 3 * colours.index(scene.colour) + 2 * SHAPES.index(scene.shape) + 1
    return scene.background == colours[number % len(colours)]


def draw_scene(rng: np.random.Generator, held_out: bool = False) -> Scene:
    """One of those that training sees, or of the others."""
    colours = list(COLOURS)
    while True:
        colour, background = (colours[index] for index in rng.choice(len(colours), 2, replace=False))
        scene = Scene(
            colour, str(rng.choice(SHAPES)), background, str(rng.choice(list(PLACES))), str(rng.choice(list(RADII))),
            (float(rng.uniform(-MAX_SHIFT_PX, MAX_SHIFT_PX)), float(rng.uniform(-MAX_SHIFT_PX, MAX_SHIFT_PX))),
        )  # fmt: skip
        if is_held_out(scene) == held_out:
            return scene


def held_out_scenes() -> list[Scene]:
    """200 scenes: each colour, shape and background that is held out, at four of the five positions."""
    scenes: list[Scene] = []
    for colour in COLOURS:
        for shape in SHAPES:
            for background in COLOURS:
                if background != colour and is_held_out(Scene(colour, shape, background)):
                    number = len(scenes) // 4
                    scenes += [
                        Scene(colour, shape, background, list(PLACES)[(number + k) % 5], list(RADII)[(number + k) % 2])
                        for k in range(4)
                    ]
    return scenes


def caption(scene: Scene) -> str:
    """Like "a small red triangle on white at the left"; what is "" in the scene is left out."""
    words = [word for word in (scene.size, scene.colour, scene.shape or "shape") if word]
    text = f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"
    text += f" on {scene.background}" if scene.background else ""
    return text + (f" at the {scene.position}" if scene.position else "")


def read_caption(text: str) -> Scene:
    """What a caption wants, "" for what it leaves open: of its colours the one behind `on` is the background's.

    Raises:  InvalidArgument: it names neither a shape nor a colour.
    """
    words = [_SPELLINGS.get(word, word) for word in re.findall("[a-z]+", text.lower())]
    behind = words.index("on") if "on" in words else len(words)
    wanted = Scene(
        colour=_first(word for word in words[:behind] if word in COLOURS),
        shape=_first(word for word in words if word in SHAPES),
        background=_first(word for word in words[behind:] if word in COLOURS),
        position=_first(word for word in words if word in PLACES),
        size=_first(word for word in words if word in RADII),
    )
    if not wanted.colour and not wanted.shape and not wanted.background:
        raise InvalidArgument(
            f"{text!r} names no shape and no colour that the judge knows, expected one of {', '.join(SHAPES)} or of "
            f"{', '.join(COLOURS)}"
        )
    return wanted


def judge(image: NDArray[np.uint8]) -> Scene:
    """What a picture [32, 32, 3] uint8, RGB, shows; "" for what is none of the words above.

    Raises:  InvalidArgument: it has another size or dtype.
    """
    if image.shape != (SIDE_PX, SIDE_PX, 3) or image.dtype != np.uint8:
        raise InvalidArgument(
            f"the judge got a picture {list(image.shape)} {image.dtype}, expected [{SIDE_PX}, {SIDE_PX}, 3] uint8"
        )
    pixels = image.astype(float)
    border = np.concatenate([pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1]])
    background = np.median(border, axis=0)
    contrast = np.linalg.norm(pixels - background, axis=-1)
    highest = np.quantile(contrast, 0.985)
    nothing = Scene("", "", _colour_name(background), "", "")
    if highest < _MIN_CONTRAST:
        return nothing
    colour = np.median(pixels[contrast > 0.7 * highest], axis=0)
    way = colour - background
    share = _firm((pixels - background) @ way / (way @ way))
    seen = replace(nothing, colour=_colour_name(colour))
    fit = _best_fit(share)
    if fit is None:
        return seen
    shape, radius, x, y = fit
    position = min(PLACES, key=lambda name: np.hypot(PLACES[name][0] - x, PLACES[name][1] - y))
    size = min(RADII, key=lambda name: abs(RADII[name] - radius))
    return replace(seen, shape=shape, position=position, size=size)


def _coverage(
    shape: str, radius: NDArray[np.floating], x: NDArray[np.floating], y: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Share [..., 32, 32] of every pixel that a shape covers; radius, x, y [...]: its size and middle, pixels."""
    grid = np.arange(SIDE_PX, dtype=np.float32) + 0.5
    r, x, y = (np.asarray(each, np.float32)[..., None, None] for each in (radius, x, y))
    right, down = grid - x, grid[:, None] - y
    across, along = np.abs(right), np.abs(down)
    match shape:
        case "circle":
            outside = np.hypot(right, down) - r
        case "square":
            outside = np.maximum(across, along) - 0.88 * r
        case "triangle":  # its top is r above the middle, its base 0.9 r below it and 2.1 r wide
            slope = np.hypot(1.9, 1.05)
            outside = np.maximum((1.9 * across - 1.05 * (down + r)) / slope, down - 0.9 * r)
        case "cross":
            bars = [np.maximum(a - r, b - 0.34 * r) for a, b in ((across, along), (along, across))]
            outside = np.minimum(*bars)
        case _:
            outside = np.abs(np.hypot(right, down) - 0.75 * r) - 0.25 * r
    return np.clip(0.5 - outside, 0.0, 1.0)


def _best_fit(share: NDArray[np.floating]) -> tuple[str, float, float, float] | None:
    """The shape, its radius and middle that cover the picture most nearly as it is; None: none does nearly."""
    columns, rows = (np.flatnonzero(share.max(axis) > 0.5) for axis in (0, 1))
    if not len(columns) or not len(rows):
        return None
    middle = [(ends[0] + ends[-1] + 1) / 2 for ends in (columns, rows)]
    half = max(len(columns), len(rows)) / 2
    radii, steps = half + np.arange(-1.0, 1.25, 0.5), np.array([-0.7, 0.0, 0.7])
    radius, x, y = (part.ravel() for part in np.meshgrid(radii, middle[0] + steps, middle[1] + steps, indexing="ij"))
    best: tuple[float, tuple[str, float, float, float]] | None = None
    for shape in SHAPES:
        covered = _firm(_coverage(shape, radius, x, y))
        overlaps = np.minimum(covered, share).sum((-2, -1)) / np.maximum(covered, share).sum((-2, -1))
        index = int(np.argmax(overlaps))
        if best is None or overlaps[index] > best[0]:
            best = float(overlaps[index]), (shape, float(radius[index]), float(x[index]), float(y[index]))
    return best[1] if best is not None and best[0] >= _MIN_OVERLAP else None


def _firm(share: NDArray[np.floating]) -> NDArray[np.floating]:
    """What is nearly nothing or nearly all is so: a faint ripple over the whole picture weighs as much as a shape."""
    return np.clip((share.astype(np.float32) - 0.15) / 0.7, 0.0, 1.0)


def _colour_name(rgb: NDArray[np.floating]) -> str:
    distances = {name: float(np.linalg.norm(rgb - np.array(value))) for name, value in COLOURS.items()}
    name = min(distances, key=lambda each: distances[each])
    return name if distances[name] <= _MAX_COLOUR_DISTANCE else ""


def _first(words: Iterable[str]) -> str:
    return next(iter(words), "")
