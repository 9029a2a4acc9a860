"""Latents of all pictures that training draws, encoded once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from sim_bridge.shapes import COLOURS, MAX_SHIFT_PX, PLACES, RADII, SHAPES, Scene, draw, is_held_out

_AT_ONCE = 100

Encode = Callable[[NDArray[np.uint8]], torch.Tensor]
"""Pictures [N, H, W, 3] -> latents [N, T, D]."""


class Bank:
    """Scenes that are not held out, and the latents [T, D] of each. A place has a few shifts, which all colours and
    shapes share: so the picture after an edit is here as is the one before."""

    def __init__(self, encode: Encode, seed: int, file: Path, num_shifts: int = 4) -> None:
        """`file`: where latents are kept for a run that goes on."""
        spots = [spot for spot in itertools.product(PLACES, RADII) for _ in range(num_shifts)]
        shifts = np.random.default_rng([seed, 13]).uniform(-MAX_SHIFT_PX, MAX_SHIFT_PX, (len(spots), 2)).round(2)
        self._spots = [(*spot, (float(x), float(y))) for spot, (x, y) in zip(spots, shifts, strict=True)]
        kinds = [kind for kind in itertools.product(COLOURS, SHAPES, COLOURS) if kind[0] != kind[2]]
        everything = [Scene(*kind, *spot) for kind in kinds for spot in self._spots]
        self.scenes = [scene for scene in everything if not is_held_out(scene)]
        self._number = {scene: number for number, scene in enumerate(self.scenes)}
        if not file.exists():
            parts = [self.scenes[first : first + _AT_ONCE] for first in range(0, len(self.scenes), _AT_ONCE)]
            encoded = [encode(np.array([draw(scene) for scene in part])).half() for part in parts]
            save_file({"latents": torch.cat(encoded)}, str(file))
        self._latents = load_file(str(file))["latents"]

    def latents(self, scenes: list[Scene]) -> torch.Tensor:
        """float32 [N, T, D]."""
        return self._latents[[self._number[scene] for scene in scenes]].float()

    def draw(self, rng: np.random.Generator) -> Scene:
        return self.scenes[int(rng.integers(len(self.scenes)))]

    def draw_like(self, wanted: Scene, rng: np.random.Generator) -> Scene:
        """One that shows what is wanted; "" may be anything."""
        kind = [("colour", list(COLOURS)), ("shape", list(SHAPES)), ("background", list(COLOURS))]
        while True:
            position, size, shift = self._spots[int(rng.integers(len(self._spots)))]
            drawn = {part: getattr(wanted, part) or names[int(rng.integers(len(names)))] for part, names in kind}
            scene = Scene(**drawn, position=position, size=size, shift=shift)
            if scene.shows(dataclasses.replace(wanted, shift=shift)) and scene in self._number:
                return scene
