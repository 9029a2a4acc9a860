"""Ticks of one robot at a fixed rate, in turn from a runtime with a setting and from one without it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.control import NOOP, POLICY
from benchmarks.control.scene import Scene, noise_scenes, tabletop_scenes
from benchmarks.jitter.busy import as_a_robot, busy_programs
from benchmarks.jitter.cases import Case, refusal
from benchmarks.report import Report, Row
from mstar_rt.client import connect_async
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.errors import FailedPrecondition
from sim_bridge.server_process import served

PERCENTILES = (50, 99, 99.9)
WITHOUT, WITH = "without", "with"
NUM_WARMUPS = 20
TIMEOUT_S = 10.0
CONTROL_HZ = 1000.0
"""Far over the rate of the ticks: one that comes right after a late one is no observation too many."""

SETTLE_S = 0.15
"""Between blocks: longer than anybody polls."""


@dataclass(frozen=True)
class Pace:
    """Blocks of ticks, each of one runtime; the two take turns."""

    tick_hz: float
    ticks_in_block: int
    num_blocks: int


@dataclass(frozen=True)
class Effort:
    noop: Pace
    policy: Pace


QUICK = Effort(Pace(200.0, 150, 2), Pace(40.0, 20, 2))
FULL = Effort(Pace(200.0, 250, 6), Pace(40.0, 40, 4))


def measure(report: Report, cases: Sequence[Case], effort: Effort) -> None:
    """What the kernel refuses here is left out, and named in the report.

    Raises:  FailedPrecondition: that is all.
    """
    refused = {case.name: why for case in cases if (why := refusal(case))}
    if refused:
        report.settings["left out"] = refused
    permitted = [case for case in cases if case.name not in refused]
    if not permitted:
        raise FailedPrecondition(f"nothing can be measured here: {'; '.join(refused.values())}")
    with _running(Case(WITHOUT)) as plain:
        for case in permitted:
            with _running(case) as changed, busy_programs() if case.busy else contextlib.nullcontext():
                asyncio.run(_compare(report, case, {WITHOUT: plain, WITH: changed}, effort))


@contextlib.contextmanager
def _running(case: Case) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jitter.yaml"
        file.write_text(yaml.safe_dump(case.deployment))
        with served(file, case.module) as address:
            yield address


async def _compare(report: Report, case: Case, addresses: dict[str, str], effort: Effort) -> None:
    for model, name, scenes, pace in (
        (NOOP, "no-op", noise_scenes(), effort.noop), (POLICY, "shipped policy", tabletop_scenes(), effort.policy)
    ):  # fmt: skip
        async with AsyncExitStack() as stack:
            sessions = {}
            for system, address in addresses.items():
                client = await stack.enter_async_context(connect_async(address))
                opened = client.control(
                    model, control_hz=CONTROL_HZ, instruction=scenes[0].instruction, budget_ms=TIMEOUT_S * 1e3
                )
                sessions[system] = await stack.enter_async_context(opened)
            stack.enter_context(as_a_robot(in_real_time=case.busy))
            seconds = await _in_blocks(sessions, scenes, pace)
        for system, values in seconds.items():
            report.rows += _rows(f"{case.name}: {name}", system, values)


async def _in_blocks(
    sessions: dict[str, AsyncControlSession], scenes: Sequence[Scene], pace: Pace
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {system: [] for system in sessions}
    endless = itertools.cycle(scenes)
    for session in sessions.values():
        await _ticks(session, endless, pace.tick_hz, NUM_WARMUPS)
    for block in range(pace.num_blocks):
        in_turn = list(sessions) if block % 2 else list(sessions)[::-1]
        for system in in_turn:
            await asyncio.sleep(SETTLE_S)
            seconds[system] += await _ticks(sessions[system], endless, pace.tick_hz, pace.ticks_in_block)
    return seconds


async def _ticks(session: AsyncControlSession, scenes: Iterator[Scene], tick_hz: float, num_ticks: int) -> list[float]:
    """Seconds from each observation to its chunk; the first one of a block wakes everybody and does not count."""
    seconds = []
    begin_s = time.perf_counter()
    for tick in range(1 + num_ticks):
        await asyncio.sleep(max(0.0, begin_s + tick / tick_hz - time.perf_counter()))
        scene = next(scenes)
        start_s = time.perf_counter()
        seq = await session.send(scene.images, scene.state)
        await session.wait_for_chunk(seq, TIMEOUT_S)
        seconds.append(time.perf_counter() - start_s)
    return seconds[1:]


def _rows(case: str, system: str, seconds: Sequence[float]) -> list[Row]:
    values = np.percentile(np.asarray(seconds) * 1e3, PERCENTILES)
    rows = [Row(case, system, f"p{p:g}", float(v), "ms") for p, v in zip(PERCENTILES, values, strict=True)]
    return [*rows, Row(case, system, "max", max(seconds) * 1e3, "ms"), Row(case, system, "ticks", len(seconds), "")]
