"""Runs of a control task at once, as several robots have them: what steps take that they share.

Robots that meet in steps take less than one after another, so that more of them can be let in; and a worker fills its
batches only to sizes of which it knows that they are in time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mstar_rt.message import Finished

NUM_TOGETHER = (4, 8)
MAX_S = 1.0
"""If so many, one after another, took longer, they are not run: a start must not take long for it."""
MAX_STEP_S = 0.02
"""What robots that move meanwhile can be made to wait, if a step of so many takes as long as so many steps."""

Once = Callable[[], Awaitable[Finished]]


@dataclass(frozen=True)
class Alone:
    """What a run takes all in all, and the longest of its steps."""

    run_s: float
    step_s: float


async def run_alone(once: Once, num_runs: int) -> Alone:
    """The quickest of so many, at least one."""
    clock = asyncio.get_running_loop().time
    found: list[Alone] = []
    for _ in range(num_runs):
        begun_s = clock()
        times = (await once()).node_times.values()
        step_us = max([time.run_us / max(1, time.num_steps) for time in times], default=0.0)
        found.append(Alone(clock() - begun_s, step_us / 1e6))
    return Alone(min([each.run_s for each in found]), min([each.step_s for each in found]))


async def run_together(once: Once, alone: Alone, max_step_s: float = math.inf) -> None:
    """Raises:  what one of them does, after all have ended."""
    for num in NUM_TOGETHER:
        if num * alone.run_s > MAX_S or num * alone.step_s > max_step_s:
            return
        ends: Sequence[object] = await asyncio.gather(*(once() for _ in range(num)), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
