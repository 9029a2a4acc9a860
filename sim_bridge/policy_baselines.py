"""What success means: the same episodes by a scripted expert, who sees what no policy does, and by random targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.tabletop_expert import Expert, RandomTargets

Place = NDArray[np.float64]
Baseline = Callable[[Place, Place], Place]
"""From the true places of rod and puck to the rod's next target, all [2] metres."""


def expert_success_rate(episodes: Sequence[tuple[str, int]]) -> float:
    """Share of episodes (task, seed) that the scripted expert solves."""
    return _success_rate(episodes, lambda env, seed: Expert(env.task))


def random_success_rate(episodes: Sequence[tuple[str, int]]) -> float:
    """Share of episodes (task, seed) that random targets solve."""
    return _success_rate(episodes, lambda env, seed: RandomTargets(seed))


def _success_rate(episodes: Sequence[tuple[str, int]], make: Callable[[InstructionEnv, int], Baseline]) -> float:
    num_solved = 0
    for task, seed in episodes:
        env = InstructionEnv(task)
        _, info = env.reset(seed=seed)
        baseline, over = make(env, seed), False
        while not over:
            _, _, solved, truncated, info = env.step(baseline(info["effector_xy"], info["puck_xy"]))
            over = solved or truncated
        num_solved += info["success"]
        env.close()
    return num_solved / len(episodes)
