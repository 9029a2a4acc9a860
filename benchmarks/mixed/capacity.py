"""How many robots one worker serves on time, and how many of them admission lets in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks.control.scene import Scene
from benchmarks.mixed.deployments import DEADLINE, POLICY, model_name
from benchmarks.mixed.figures import latencies_s, missed_percent
from benchmarks.mixed.robots import CONTROL_HZ, Tick, drive, drive_all, open_session
from benchmarks.report import Check, Report, Row, percentile_rows
from mstar_rt.client import AsyncClient
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.errors import ResourceExhausted

MODEL = model_name(POLICY, DEADLINE)
WITHOUT, WITH = "without admission", "with admission"
MAX_MISSED, MAX_MISSED_ADMITTED = 0.1, 0.5
"""Percent: what a worker's capacity is measured by, and what no admitted robot may exceed."""

HOPELESS = 20.0
"""Percent missed: more robots tell nothing more."""

JOIN_EVERY_S = 0.5
SETTLE_S = 1.0
SPREAD = 0.618
"""The golden ratio: its multiples are spread over a period whatever their number."""


@dataclass(frozen=True)
class Effort:
    """Crowds of robots in turn, each for at least `least_s` and `fewest_ticks`, which is enough to tell 0.1 %."""

    crowds: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    least_s: float = 8.0
    fewest_ticks: int = 1500
    admitted_s: float = 30.0

    def seconds(self, num_robots: int) -> float:
        return max(self.least_s, self.fewest_ticks / CONTROL_HZ / num_robots)


FULL = Effort()


def shortened(share: float) -> Effort:
    return Effort(FULL.crowds[::2], max(2.0, FULL.least_s * share), 0, max(4.0, FULL.admitted_s * share))


async def sweep(report: Report, client: AsyncClient, scenes: Sequence[Scene], effort: Effort) -> int | None:
    """Returns the first number of robots whose misses pass MAX_MISSED; None: none of those tried."""
    first = None
    for num_robots in effort.crowds:
        of_each = await drive_all(client, MODEL, scenes, num_robots, effort.seconds(num_robots))
        missed = missed_percent([tick for ticks in of_each for tick in ticks])
        report.rows += _rows(num_robots, WITHOUT, of_each)
        if first is None and missed > MAX_MISSED:
            first = num_robots
        if missed > HOPELESS:
            break
    return first


async def admit(
    report: Report, client: AsyncClient, scenes: Sequence[Scene], effort: Effort, first_too_many: int | None
) -> None:
    """Robots join those that move until one is refused; then those go on."""
    async with AsyncExitStack() as stack:
        robots: list[_Robot] = []
        refusal = None
        while refusal is None and len(robots) <= max(effort.crowds):
            try:
                session = await stack.enter_async_context(open_session(client, MODEL, scenes[0]))
            except ResourceExhausted as error:
                refusal = str(error)
                break
            robots.append(_Robot(session, scenes, len(robots)))
            await asyncio.sleep(JOIN_EVERY_S)
        joined_ns = time.monotonic_ns() + int(SETTLE_S * 1e9)
        await asyncio.sleep(SETTLE_S + effort.admitted_s)
        of_each = [[tick for tick in await robot.stop() if tick.due_ns >= joined_ns] for robot in robots]
    report.settings["refusal"] = refusal or "none was refused"
    worst = max(map(missed_percent, of_each), default=0.0)
    report.rows += _rows(len(robots), WITH, of_each) if robots else []
    bound = max(effort.crowds) if first_too_many is None else first_too_many
    report.checks += [
        Check.at_least("robots admitted", len(robots), 1),
        Check.at_most(f"robots admitted; the misses of so many pass {MAX_MISSED} %", len(robots), bound),
        Check.at_most(f"the worst of the {len(robots)} admitted: missed, %", worst, MAX_MISSED_ADMITTED),
    ]


class _Robot:
    """It moves from when it is made until it is stopped."""

    def __init__(self, session: AsyncControlSession, scenes: Sequence[Scene], number: int) -> None:
        self._stopping = False
        phase = number * SPREAD % 1.0
        self._running = asyncio.create_task(drive(session, scenes, lambda _: not self._stopping, phase))

    async def stop(self) -> list[Tick]:
        self._stopping = True
        return await self._running


def _rows(num_robots: int, system: str, of_each: Sequence[Sequence[Tick]]) -> list[Row]:
    case = f"{num_robots} robots at {CONTROL_HZ:g} Hz, 1 worker"
    together = [tick for ticks in of_each for tick in ticks]
    return [
        Row(case, system, "ticks", len(together), ""),
        Row(case, system, "missed", missed_percent(together), "%"),
        Row(case, system, "missed by the worst", max(map(missed_percent, of_each)), "%"),
        *percentile_rows(case, system, latencies_s(together)),
        Row(case, system, "max", float(np.max(latencies_s(together))) * 1e3, "ms"),
    ]
