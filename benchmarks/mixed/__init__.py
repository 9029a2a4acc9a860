"""A policy at 20 Hz beside a planner and painters on the same workers: do its ticks come in time?

Alone and with the load, on one worker and on two; in the order of deadlines, first come first served, and round robin
over ready nodes; how many robots a worker serves; what a decision of the scheduler costs.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.control import scene as control
from benchmarks.mixed import capacity, contention, decisions
from benchmarks.mixed.cases import MIXED
from benchmarks.mixed.deployments import DEADLINE, SYSTEMS, serving
from benchmarks.mixed.loads import PLAN_HZ
from benchmarks.mixed.robots import CONTROL_HZ, PERIOD_S
from benchmarks.mixed.timeline import Scene, plot
from benchmarks.report import Report, finish
from mstar_rt.client import connect_async


@dataclass(frozen=True)
class Effort:
    """Each case for `seconds`, in `num_rounds` turns."""

    seconds: float
    num_rounds: int
    workers: tuple[int, ...] = (1, 2)
    capacity: capacity.Effort | None = capacity.FULL


FULL = Effort(120.0, 4)
QUICK = Effort(2.5, 1, (1,), None)


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    return run(QUICK if args.quick else FULL, args)


def shortened(seconds: float, workers: Sequence[int], with_capacity: bool) -> Effort:
    """`seconds` for each case on each number of workers, and less for each crowd of robots."""
    crowds = capacity.shortened(seconds / FULL.seconds) if with_capacity else None
    return Effort(seconds, 1, tuple(workers), crowds)


def run(effort: Effort, args: argparse.Namespace) -> int:
    settings = {
        "seconds": effort.seconds, "rounds": effort.num_rounds, "control_hz": CONTROL_HZ,
        "deadline, ms": PERIOD_S * 1e3, "painters per worker": contention.PAINTERS_PER_WORKER,
        "plans per second": PLAN_HZ,
    }  # fmt: skip
    report = Report("mixed", settings)
    decisions.measure(report)
    scenes = asyncio.run(_measure(report, effort))
    return finish(report, args, functools.partial(plot, scenes=scenes))


async def _measure(report: Report, effort: Effort) -> list[Scene]:
    seen = control.tabletop_scenes()
    # The robots' process has loaded much that lives to the end. To walk it takes their collector over 100 ms, in which
    # all of them stand still: with four robots that alone was 0.6 % of the ticks of a crowd.
    gc.collect()
    gc.freeze()
    timelines: list[Scene] = []
    for num_workers in effort.workers:
        with serving(num_workers, admission=False) as reached:
            async with connect_async(reached.address) as client:
                found = await contention.measure(report, client, reached, seen, effort.seconds, effort.num_rounds)
        if not timelines:
            timelines = [found[MIXED[system]].timeline for system in SYSTEMS]
    if effort.capacity is not None:
        await _measure_capacity(report, seen, effort.capacity)
    return timelines


async def _measure_capacity(report: Report, seen: Sequence[control.Scene], effort: capacity.Effort) -> None:
    with serving(1, (DEADLINE,), admission=False) as reached:
        async with connect_async(reached.address) as client:
            first_too_many = await capacity.sweep(report, client, seen, effort)
    with serving(1, (DEADLINE,)) as reached:
        async with connect_async(reached.address) as client:
            await capacity.admit(report, client, seen, effort, first_too_many)
