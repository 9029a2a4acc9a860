"""The same scene for every system: random frames of a model's size, a goal and a pose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mstar_rt.model import ServedModel


@dataclass(frozen=True)
class Scene:
    """frames and goal uint8 [1, S, S, 3]; state float32 [7]."""

    frames: np.ndarray
    goal: np.ndarray
    state: np.ndarray


def scene(model: ServedModel, seed: int = 0) -> Scene:
    generator = np.random.default_rng(seed)
    size = model.facts["image_size"]
    frames, goal = generator.integers(0, 256, (2, 1, size, size, 3), dtype=np.uint8)
    state = np.array([0.1, -0.05, 0, 0, 0, 0.2, 0.5], np.float32)
    return Scene(frames, goal, state)


def random_actions(num_sequences: int, horizon: int, seed: int = 1) -> np.ndarray:
    """[B, H, 7] float32, metres and radians, without rotation."""
    actions = np.random.default_rng(seed).uniform(-0.05, 0.05, (num_sequences, horizon, 7)).astype(np.float32)
    actions[..., 3:6] = 0.0
    return actions
