"""Demonstrations: states that a disturbed expert visits, each with what the undisturbed expert would do from there.

A label is not what was done next but a branch of the simulation: the expert alone, for one action horizon. So every
state has a label that leads back to the task, however the robot came into it. Some branches begin with a few disturbed
actions: what real-time chunking gives as the prefix of the next chunk is not the expert's either.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim_bridge.instruction_tasks import EPISODE_TICKS, HELD_TICKS, TASKS, draw_start
from sim_bridge.tabletop_expert import Expert, Place
from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, EFFECTOR_LIMIT_M, PUCK_LIMIT_M
from sim_bridge.tabletop_servo import ServoTabletop

TRAIN_STREAM = 0
HELD_OUT_STREAM = 1
ACTION_HORIZON = 16
MAX_PREFIX_DELAY = 8

_TICKS_BETWEEN_LABELS = 4
_SHARE_WITH_DISTURBED_PREFIX = 0.3
_SHARE_OF_ODD_STARTS = 0.35


@dataclasses.dataclass(frozen=True)
class Demonstrations:
    """N samples: effector, puck [N, 2] float32, metres; task [N] uint8, its place in TASKS; actions [N, H, 2] float32,
    absolute targets, metres; prefix [N] uint8, how many of the actions, from the first, are disturbed."""

    effector: NDArray[np.float32]
    puck: NDArray[np.float32]
    task: NDArray[np.uint8]
    actions: NDArray[np.float32]
    prefix: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.task)

    def save(self, path: Path) -> None:
        np.savez(
            path, allow_pickle=False, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        )

    @classmethod
    def load(cls, path: Path) -> Demonstrations:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**arrays)

    @classmethod
    def joined(cls, parts: list[Demonstrations]) -> Demonstrations:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def record_demonstrations(seed: int, stream: int, num_samples: int) -> Demonstrations:
    """Simulate; `stream` keeps training and held-out data apart for every seed."""
    rng = np.random.default_rng([seed, stream])
    recorder = _Recorder(rng)
    while len(recorder.samples) < num_samples:
        recorder.record_episode()
    effector, puck, task, actions, prefix = zip(*recorder.samples[:num_samples], strict=True)
    return Demonstrations(
        np.array(effector, np.float32), np.array(puck, np.float32), np.array(task, np.uint8),
        np.array(actions, np.float32), np.array(prefix, np.uint8),
    )  # fmt: skip


class _Recorder:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._physics = ServoTabletop()
        self.samples: list[tuple[Place, Place, int, NDArray[np.float64], int]] = []

    def record_episode(self) -> None:
        rng, physics = self._rng, self._physics
        number = int(rng.integers(len(TASKS)))
        task = tuple(TASKS.values())[number]
        expert = Expert(task)
        physics.place(*(_odd_start(rng) if rng.random() < _SHARE_OF_ODD_STARTS else draw_start(rng)))
        disturbance = _Disturbance(rng)
        num_held, label_at = 0, 0
        for tick in range(EPISODE_TICKS):
            if tick == label_at:
                self.samples.append((physics.effector_xy, physics.puck_xy, number, *self._branch(expert)))
                label_at += int(rng.integers(1, 2 * _TICKS_BETWEEN_LABELS))
            physics.follow(disturbance.applied(expert(physics.effector_xy, physics.puck_xy), physics.effector_xy))
            # A puck that was pushed is as good to touch as one that was not.
            reached = task.reached(physics.effector_xy, physics.puck_xy, physics.puck_xy)
            num_held = num_held + 1 if reached else 0
            if num_held == 2 * HELD_TICKS:
                return

    def _branch(self, expert: Expert) -> tuple[NDArray[np.float64], int]:
        """The expert's next actions [H, 2] from here, and how many of them are disturbed."""
        rng, physics = self._rng, self._physics
        prefix = int(rng.integers(1, MAX_PREFIX_DELAY + 1)) if rng.random() < _SHARE_WITH_DISTURBED_PREFIX else 0
        drift = rng.normal(0.0, 0.003, 2)
        actions = np.empty((ACTION_HORIZON, 2))
        before = physics.snapshot()
        for index in range(ACTION_HORIZON):
            actions[index] = expert(physics.effector_xy, physics.puck_xy)
            if index < prefix:
                actions[index] += drift + rng.normal(0.0, 0.001, 2)
            physics.follow(actions[index])
        physics.restore(before)
        return actions, prefix


class _Disturbance:
    """Now and then, for up to a second: a drift on top of the expert's action, a walk to somewhere else, or nothing."""

    _MODES = ("none", "drift", "walk")

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ticks_left = 0

    def applied(self, target: Place, effector: Place) -> Place:
        if self._ticks_left == 0:
            self._pick()
        self._ticks_left -= 1
        if self._mode == "walk":
            return effector + self._step
        if self._mode == "drift":
            return target + 0.6 * self._step + self._rng.normal(0.0, 0.002, 2)
        return target + self._rng.normal(0.0, 0.001, 2)

    def _pick(self) -> None:
        rng = self._rng
        self._mode = self._MODES[rng.choice(3, p=(0.45, 0.35, 0.2))]
        self._ticks_left = int(rng.integers(4, 20))
        angle = rng.uniform(-np.pi, np.pi)
        self._step = rng.uniform(0.002, 0.011) * np.array([np.cos(angle), np.sin(angle)])


def _odd_start(rng: np.random.Generator) -> tuple[Place, Place]:
    """A puck anywhere on the table, half of the time with the rod close to it."""
    puck = rng.uniform(-PUCK_LIMIT_M, PUCK_LIMIT_M, 2)
    while True:
        if rng.random() < 0.5:
            angle = rng.uniform(-np.pi, np.pi)
            gap = CONTACT_DISTANCE_M + rng.uniform(0.0, 0.06)
            effector = puck + gap * np.array([np.cos(angle), np.sin(angle)])
        else:
            effector = rng.uniform(-EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M, 2)
        if np.linalg.norm(effector - puck) >= CONTACT_DISTANCE_M and np.abs(effector).max() <= EFFECTOR_LIMIT_M:
            return effector, puck
