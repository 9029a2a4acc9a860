"""A scripted expert for the tasks that are said in words. It sees where the rod and the puck are, which no policy does.

It keeps nothing between ticks: the next target is a function of the two places. So it recovers from wherever it is put,
and what it would do from any state can be simulated.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim_bridge.instruction_tasks import CORNER_XY, SIDE_M, InstructionTask
from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, EFFECTOR_LIMIT_M, PUCK_LIMIT_M

Place = NDArray[np.float64]

_STEP_M = 0.010
"""Its speed: 0.2 m/s at 20 Hz, under the servo's 0.25."""
_SLOWING = 0.35
_AROUND_M = CONTACT_DISTANCE_M + 0.025
"""Radius of the circle on which it goes round the puck."""
_BEHIND_M = CONTACT_DISTANCE_M + 0.015
_ALIGNED_M = 0.022
"""How far beside the line through the puck's centre it may be and still push."""
_PUSHED_M = SIDE_M + 0.025


class Expert:
    """Called once a tick with the places [2] of rod and puck, metres; returns the rod's next absolute target [2]."""

    def __init__(self, task: InstructionTask) -> None:
        self._task = task
        self._direction = None if task.push_direction is None else np.array(task.push_direction)

    def __call__(self, effector_xy: Place, puck_xy: Place) -> Place:
        if self._direction is not None:
            return self._push(effector_xy, puck_xy, self._direction)
        if self._task.name == "touch":
            return _touch(effector_xy, puck_xy)
        return _go_round(effector_xy, puck_xy, np.array(CORNER_XY))

    def _push(self, effector: Place, puck: Place, direction: Place) -> Place:
        left_m = _PUSHED_M - float(puck @ direction)
        if left_m <= 0.0:
            return effector.copy()
        to_puck = puck - effector
        along = float(to_puck @ direction)
        beside = to_puck - along * direction
        if along > 0.5 * CONTACT_DISTANCE_M and math.hypot(*beside) <= _ALIGNED_M:
            gap_m = max(0.0, along - CONTACT_DISTANCE_M)
            forward = min(_STEP_M, _SLOWING * (left_m + gap_m) + 0.002)
            return effector + forward * direction + _shortened(0.5 * beside, 0.5 * _STEP_M)
        return _go_round(effector, puck, puck - _BEHIND_M * direction)


class RandomTargets:
    """What success means nothing below: a random place of the table as the target, another one every 0.4 s."""

    _TICKS = 8

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_calls = 0

    def __call__(self, effector_xy: Place, puck_xy: Place) -> Place:
        if self._num_calls % self._TICKS == 0:
            self._target = self._rng.uniform(-EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M, 2)
        self._num_calls += 1
        return self._target


def _touch(effector: Place, puck: Place) -> Place:
    to_puck = puck - effector
    distance = math.hypot(*to_puck)
    gap_m = distance - CONTACT_DISTANCE_M - 0.002
    return effector + to_puck * (max(-_STEP_M, min(_STEP_M, _SLOWING * gap_m)) / distance)


def _go_round(effector: Place, puck: Place, goal: Place) -> Place:
    """One step to a place clear of the puck: straight where the way is free, else round it by the shorter side."""
    goal = np.clip(goal, -EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M)
    way = goal - effector
    if _clear(effector, goal, puck):
        return effector + _shortened(_SLOWING * way, _STEP_M)
    away = effector - puck
    radius = math.hypot(*away)
    outward = away / radius
    tangent = np.array([-outward[1], outward[0]])
    if float(tangent @ way) < 0.0:
        tangent = -tangent
    tangent = _past_the_wall(effector, puck, tangent)
    step = tangent + np.clip((_AROUND_M - radius) / 0.02, -1.0, 1.0) * outward
    return np.clip(effector + _shortened(step, 1.0) * _STEP_M, -EFFECTOR_LIMIT_M, EFFECTOR_LIMIT_M)


def _past_the_wall(effector: Place, puck: Place, tangent: Place) -> Place:
    """The other way round where the rod does not fit between the puck and the wall that it is heading for."""
    ahead = puck + _AROUND_M * tangent
    return -tangent if np.abs(ahead).max() > EFFECTOR_LIMIT_M + 0.02 else tangent


def _clear(start: Place, end: Place, puck: Place) -> bool:
    """Whether the straight way from start to end keeps away from the puck, or leads away from it."""
    along = end - start
    length_squared = float(along @ along)
    if length_squared < 1e-12:
        return True
    share = float((puck - start) @ along) / length_squared
    if share <= 0.0:
        return True
    nearest = start + min(1.0, share) * along
    return math.hypot(*(puck - nearest)) >= _AROUND_M - 0.012


def _shortened(way: Place, limit: float) -> Place:
    length = math.hypot(*way)
    return way if length <= limit else way * (limit / length)


assert _PUSHED_M < PUCK_LIMIT_M
