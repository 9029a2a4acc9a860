"""Reach and push tasks on the tabletop: where things start, where they should end, and what that looks like.

A task is a function of its seed alone. Its random stream is of another kind than the training data's, so no goal was
trained on, whatever the seeds.

reach: the rod goes to a place anywhere on the table. The puck lies still, clear of the straight path.
push:  the puck goes 80 to 180 mm in a direction anywhere on the table. The rod starts within
       60 mm of the puck on any side of it, so that it often has to go round first; the goal picture shows it behind the
       moved puck.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mstar_rt.errors import NotFound, nearest
from sim_bridge.camera import draw_tabletop
from sim_bridge.tabletop_physics import (
    CONTACT_DISTANCE_M,
    EFFECTOR_LIMIT_M,
    EFFECTOR_RADIUS_M,
    PUCK_LIMIT_M,
    PUCK_RADIUS_M,
)

TaskKind = Literal["reach", "push"]
TASK_KINDS: tuple[TaskKind, ...] = ("reach", "push")
SUCCESS_DISTANCE_M = 0.030

REACH_DISTANCE_M = (0.10, 0.35)
REACH_CLEARANCE_M = 0.02
PUSH_DISTANCE_M = (0.08, 0.18)
PUSH_START_GAP_M = (0.002, 0.06)

_TASK_STREAM = 0x7A5C
_TOUCHING_M = CONTACT_DISTANCE_M + 0.002

Place = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Task:
    """Places are [2], metres, world frame; `goal_image` is [64, 64, 3] uint8 RGB."""

    kind: TaskKind
    seed: int
    start_effector_xy: Place
    start_puck_xy: Place
    goal_effector_xy: Place
    goal_puck_xy: Place
    goal_image: NDArray[np.uint8]

    @property
    def num_steps(self) -> int:
        """Control steps that an episode of this task lasts."""
        return EPISODE_STEPS[self.kind]

    @property
    def goal_xy(self) -> Place:
        """Where the thing that counts should end: the rod for reach, the puck for push."""
        return self.goal_effector_xy if self.kind == "reach" else self.goal_puck_xy

    @property
    def goal_radius_m(self) -> float:
        return EFFECTOR_RADIUS_M if self.kind == "reach" else PUCK_RADIUS_M

    def distance_m(self, effector_xy: Place, puck_xy: Place) -> float:
        """From where the thing that counts is to its goal."""
        place = effector_xy if self.kind == "reach" else puck_xy
        return float(np.linalg.norm(place - self.goal_xy))


EPISODE_STEPS: dict[TaskKind, int] = {"reach": 12, "push": 15}


def sample_task(kind: str, seed: int) -> Task:
    """Raises: NotFound: no task of that kind."""
    if kind not in _SAMPLERS:
        raise NotFound(f"no tabletop task is called {kind!r}; {nearest(kind, _SAMPLERS)}")
    rng = np.random.default_rng([_TASK_STREAM, TASK_KINDS.index(kind), seed])
    return _SAMPLERS[kind](rng, seed)


def _sample_reach(rng: np.random.Generator, seed: int) -> Task:
    while True:
        start, goal = rng.uniform(-EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M, (2, 2))
        puck = rng.uniform(-PUCK_LIMIT_M, PUCK_LIMIT_M, 2)
        far_enough = REACH_DISTANCE_M[0] <= np.linalg.norm(goal - start) <= REACH_DISTANCE_M[1]
        if far_enough and _distance_to_path(puck, start, goal) > CONTACT_DISTANCE_M + REACH_CLEARANCE_M:
            return Task("reach", seed, start, puck, goal, puck, draw_tabletop(goal, puck))


def _sample_push(rng: np.random.Generator, seed: int) -> Task:
    while True:
        puck = rng.uniform(-PUCK_LIMIT_M, PUCK_LIMIT_M, 2)
        angle = rng.uniform(-np.pi, np.pi)
        goal_puck = puck + rng.uniform(*PUSH_DISTANCE_M) * _unit(angle)
        goal_effector = goal_puck - _TOUCHING_M * _unit(angle)
        side = rng.uniform(-np.pi, np.pi)
        start = puck - (CONTACT_DISTANCE_M + rng.uniform(*PUSH_START_GAP_M)) * _unit(side)
        rod_fits = max(np.abs(start).max(), np.abs(goal_effector).max()) <= EFFECTOR_LIMIT_M
        if rod_fits and np.abs(goal_puck).max() <= PUCK_LIMIT_M:
            return Task("push", seed, start, puck, goal_effector, goal_puck, draw_tabletop(goal_effector, goal_puck))


_SAMPLERS = {"reach": _sample_reach, "push": _sample_push}


def _unit(angle_rad: float) -> Place:
    return np.array([np.cos(angle_rad), np.sin(angle_rad)])


def _distance_to_path(place: Place, start: Place, end: Place) -> float:
    """Distance of a place from the straight segment start-end, metres."""
    along = end - start
    share = np.clip(np.dot(place - start, along) / np.dot(along, along), 0.0, 1.0)
    return float(np.linalg.norm(place - start - share * along))
