"""A control session alone, and with a planner and painters that saturate its workers, in each order of taking steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from benchmarks.control.scene import Scene
from benchmarks.mixed import figures
from benchmarks.mixed.cases import CASES, Case, Measured, Moment
from benchmarks.mixed.deployments import PAINTER, PLANNER, POLICY, Reached, model_name
from benchmarks.mixed.loads import RUNNING, Came
from benchmarks.mixed.robots import drive_all
from benchmarks.mixed.timeline import scene_of
from benchmarks.report import Report
from mstar_rt.client import AsyncClient

PAINTERS_PER_WORKER = 3
SETTLE_S = 1.0
"""Between the first results of the load and the first tick that counts."""

TRACED_S = 4.0
"""Enough for the last ticks, and for those that nobody answers."""

PAINTERS_ALONE_SHARE = 1 / 6
"""Of the time of a case: how long the painters are measured without anything else."""


async def measure(
    report: Report,
    client: AsyncClient,
    reached: Reached,
    scenes: Sequence[Scene],
    seconds: float,
    num_rounds: int,
    cases: Sequence[Case] = CASES,
) -> dict[Case, Measured]:
    """Every case for `seconds`, in turns, another one first in each round."""
    found = {case: Measured() for case in cases}
    for turn in range(num_rounds):
        for place in range(len(cases)):
            case = cases[(place + turn) % len(cases)]
            share = 1.0 if case.robot else PAINTERS_ALONE_SHARE
            await _segment(found[case], client, reached, scenes, case, share * seconds / num_rounds)
    figures.add_contention(report, reached, found)
    return found


async def _segment(
    measured: Measured, client: AsyncClient, reached: Reached, scenes: Sequence[Scene], case: Case, seconds: float
) -> None:
    ranks = reached.ranks[case.system]
    async with contextlib.AsyncExitStack() as stack:
        load = await stack.enter_async_context(_loaded(reached.address, case, len(ranks))) if case.load else None
        await asyncio.sleep(SETTLE_S)
        begin = await Moment.now(client, ranks)
        if case.robot:
            policy = model_name(POLICY, case.system)
            (ticks,) = await drive_all(client, policy, scenes, 1, seconds)
            measured.ticks += ticks
        else:
            await asyncio.sleep(seconds)
        end = await Moment.now(client, ranks)
        measured.add(begin, end)
        if case.robot:
            measured.timeline = scene_of(case.system, (await client.trace(TRACED_S)).processes, ranks, ticks)
        if load is not None:
            measured.came.append((await load.stop()).within(begin.at_ns, end.at_ns))


# ---- the load's process


@dataclass
class Load:
    process: asyncio.subprocess.Process

    async def stop(self) -> Came:
        said, _ = await self.process.communicate(b"stop\n")
        assert self.process.returncode == 0, "the load failed: its error is above"
        return Came(**json.loads(said))


@contextlib.asynccontextmanager
async def _loaded(address: str, case: Case, num_workers: int) -> AsyncIterator[Load]:
    """Yields once everybody has had a first result."""
    command = [sys.executable, "-m", "benchmarks.mixed.load_process", address]
    command += ["--painter", model_name(PAINTER, case.system), "--num-painters", f"{PAINTERS_PER_WORKER * num_workers}"]
    command += ["--planner", model_name(PLANNER, case.system)] if PLANNER in case.load else []
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        assert line == RUNNING, f"the load did not start: {line}"
        yield Load(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
