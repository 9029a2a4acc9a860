"""The scripted expert solves every task, from wherever it is put, and chance does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sim_bridge.instruction_tasks import EPISODE_TICKS, HELD_TICKS, TASKS, sample_start, task_named
from sim_bridge.tabletop_expert import Expert, RandomTargets
from sim_bridge.tabletop_servo import ServoTabletop


def _solves(name: str, act: Callable[..., np.ndarray], physics: ServoTabletop) -> bool:
    num_held, start = 0, physics.puck_xy
    for _ in range(EPISODE_TICKS):
        physics.follow(act(physics.effector_xy, physics.puck_xy))
        reached = task_named(name).reached(physics.effector_xy, physics.puck_xy, start)
        num_held = num_held + 1 if reached else 0
        if num_held == HELD_TICKS:
            return True
    return False


@pytest.mark.parametrize("name", TASKS)
def test_the_expert_solves_it(name: str) -> None:
    physics = ServoTabletop()
    for seed in range(6):
        physics.place(*sample_start(seed))
        assert _solves(name, Expert(task_named(name)), physics)


def test_the_expert_recovers_from_the_wrong_side_of_the_puck() -> None:
    physics = ServoTabletop()
    physics.place(np.array([-0.13, 0.01]), np.array([-0.05, 0.0]))
    assert _solves("push_left", Expert(task_named("push_left")), physics)


def test_chance_rarely_solves_anything() -> None:
    physics = ServoTabletop()
    num_solved = 0
    for seed in range(2):
        for name in TASKS:
            physics.place(*sample_start(seed))
            num_solved += _solves(name, RandomTargets(seed), physics)
    assert num_solved <= 2
