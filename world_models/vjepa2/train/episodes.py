"""Training episodes: the simulated tabletop driven by a mixture of scripted behaviours, many of them around contact.

Actions are the commanded displacements. A rod that is stopped by a wall or a pinched puck moves less than commanded;
the states hold where it really went.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from sim_bridge.camera import IMAGE_SIZE_PX, draw_tabletop
from sim_bridge.tabletop_physics import (
    CONTACT_DISTANCE_M,
    EFFECTOR_LIMIT_M,
    MAX_DISPLACEMENT_M,
    PUCK_LIMIT_M,
    TabletopPhysics,
)

TRAIN_STREAM = 0
HELD_OUT_STREAM = 1
FRAMES_PER_EPISODE = 16


@dataclasses.dataclass(frozen=True)
class Episodes:
    """N episodes of T frames: images [N, T, 64, 64, 3] uint8; effector, puck [N, T, 2], actions [N, T-1, 2], metres."""

    images: NDArray[np.uint8]
    effector: NDArray[np.float32]
    puck: NDArray[np.float32]
    actions: NDArray[np.float32]

    @property
    def share_with_contact(self) -> float:
        """Share of transitions in which the puck moves by more than 2 mm."""
        moved = np.linalg.norm(np.diff(self.puck, axis=1), axis=-1) > 0.002
        return float(moved.mean())


def record_episodes(seed: int, stream: int, num_episodes: int, frames: int = FRAMES_PER_EPISODE) -> Episodes:
    """Simulate and draw episodes of so many frames; `stream` keeps training and held-out data apart for every seed."""
    rng = np.random.default_rng([seed, stream])
    physics = TabletopPhysics()
    images = np.empty((num_episodes, frames, IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3), np.uint8)
    effector = np.empty((num_episodes, frames, 2), np.float32)
    puck = np.empty((num_episodes, frames, 2), np.float32)
    actions = np.empty((num_episodes, frames - 1, 2), np.float32)
    for episode in range(num_episodes):
        physics.place(*_sample_start(rng))
        behaviour = _Behaviour(rng)
        for frame in range(frames):
            effector[episode, frame], puck[episode, frame] = physics.effector_xy, physics.puck_xy
            images[episode, frame] = draw_tabletop(physics.effector_xy, physics.puck_xy)
            if frame + 1 < frames:
                actions[episode, frame] = behaviour.act(physics.effector_xy, physics.puck_xy)
                physics.move(actions[episode, frame])
    return Episodes(images, effector, puck, actions)


def _sample_start(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two thirds of the episodes start with the rod within 60 mm of the puck, on any side of it."""
    puck = rng.uniform(-PUCK_LIMIT_M, PUCK_LIMIT_M, 2)
    near = rng.random() < 2 / 3
    while True:
        if near:
            angle = rng.uniform(-np.pi, np.pi)
            reach = CONTACT_DISTANCE_M + rng.uniform(0.001, 0.06)
            effector = puck + reach * np.array([np.cos(angle), np.sin(angle)])
        else:
            effector = rng.uniform(-EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M, 2)
        clear = np.linalg.norm(effector - puck) > CONTACT_DISTANCE_M
        if clear and np.abs(effector).max() <= EFFECTOR_LIMIT_M:
            return effector, puck


class _Behaviour:
    """Switches between seeking the puck, wandering and independent noise (what a planner's candidates look like)."""

    _MODES = ("seek", "wander", "noise")

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._heading = 0.0
        self._speed = 0.0
        self._aim = 0.0
        self._pick()

    def act(self, effector: NDArray[np.float64], puck: NDArray[np.float64]) -> NDArray[np.float64]:
        """One commanded displacement [2], metres, within the limit in each dimension."""
        rng = self._rng
        if rng.random() < 0.2:
            self._pick()
        if self._mode == "noise":
            action = rng.normal(0.0, MAX_DISPLACEMENT_M, 2)
        else:
            heading = self._heading
            if self._mode == "seek":
                to_puck = puck - effector
                heading = float(np.arctan2(to_puck[1], to_puck[0])) + self._aim + rng.normal(0.0, 0.15)
            else:
                self._heading += rng.normal(0.0, 0.2)
            direction = np.array([np.cos(heading), np.sin(heading)])
            action = self._speed * direction + rng.normal(0.0, 0.005, 2)
        return np.clip(action, -MAX_DISPLACEMENT_M, MAX_DISPLACEMENT_M)

    def _pick(self) -> None:
        rng = self._rng
        self._mode = self._MODES[rng.choice(3, p=(0.55, 0.25, 0.2))]
        self._heading = rng.uniform(-np.pi, np.pi)
        self._speed = rng.uniform(0.15, 1.35) * MAX_DISPLACEMENT_M
        self._aim = rng.normal(0.0, 0.35)
