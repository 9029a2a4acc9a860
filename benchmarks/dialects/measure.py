"""Round trips of each dialect, crowds of openpi clients, and handshakes while the policy is busy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks.control.scene import Scene, noise_scenes, tabletop_scenes
from benchmarks.dialects import CONTROL_HZ, NOOP, POLICY, SLOW, SLOW_MS, Serving
from benchmarks.dialects.foreign import RoundTrip, gr00t, lerobot_robot, native, openpi, openpi_message
from benchmarks.dialects.openpi import OpenpiClient
from benchmarks.dialects.pattern import pattern_served
from benchmarks.report import Check, Report, Row, finish, percentile_rows
from mstar_rt.client import connect_async

NATIVE, SHARED, OPENPI, GR00T, LEROBOT = (
    "native, bytes", "native, shared memory", "openpi dialect", "GR00T dialect", "LeRobot dialect",
)  # fmt: skip
PATTERN = "openpi's server pattern"
ONE = "one robot at 30 Hz, three 224x224 images up, [50, 32] down, a policy that does nothing"
NUM_WARMUPS = 30
MAX_HANDSHAKE_MS = 20.0
MAX_OPENPI_OVER_NATIVE_MS = 2.0
PERIOD_S = 1 / CONTROL_HZ


@dataclass(frozen=True)
class Effort:
    paced_s: float
    crowds: tuple[int, ...]
    crowd_s: float
    num_handshakes: int


QUICK = Effort(3.0, (1, 4), 2.0, 4)
FULL = Effort(60.0, (1, 4), 30.0, 20)


def measure(serving: Serving, args: argparse.Namespace) -> int:
    report = Report("dialects", {"control_hz": CONTROL_HZ, "quick": args.quick})
    asyncio.run(_measure(report, serving, QUICK if args.quick else FULL))
    return finish(report, args)


async def _measure(report: Report, serving: Serving, effort: Effort) -> None:
    await _one_robot(report, serving, effort)
    for system, ports in (
        (OPENPI, {model: _as_given(port) for model, port in serving.openpi.items()}),
        (PATTERN, {model: pattern_served(model) for model in (POLICY, SLOW)}),
    ):
        async with ports[POLICY] as port:
            for num_clients in effort.crowds:
                await _crowd(report, system, port, num_clients, effort.crowd_s)
        async with ports[SLOW] as port:
            await _handshakes(report, system, port, effort.num_handshakes)
    _compare(report, effort)


@contextlib.asynccontextmanager
async def _as_given(port: int) -> AsyncIterator[int]:
    yield port


# ---- one robot


async def _one_robot(report: Report, serving: Serving, effort: Effort) -> None:
    """All in turn within each period, another one first in each."""
    scenes = noise_scenes()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect_async(serving.address))
        pattern = await stack.enter_async_context(pattern_served(NOOP))
        opening = {
            NATIVE: native(client, scenes, False),
            SHARED: native(client, scenes, True),
            OPENPI: openpi(serving.openpi[NOOP], scenes),
            GR00T: gr00t(serving.gr00t, scenes),
            LEROBOT: lerobot_robot(serving.address, scenes),
            PATTERN: openpi(pattern, scenes),
        }
        systems = {name: await stack.enter_async_context(each) for name, each in opening.items()}
        seconds = await _in_turn(systems, effort.paced_s)
    for system, values in seconds.items():
        report.rows += percentile_rows(ONE, system, values)
        over = (np.median(values) - np.median(seconds[NATIVE])) * 1e3
        report.rows.append(Row(ONE, system, "p50 over native", float(over), "ms"))
    over_ms = float(np.median(seconds[OPENPI]) - np.median(seconds[NATIVE])) * 1e3
    report.checks.append(Check.at_most("openpi dialect over native, ms p50", over_ms, MAX_OPENPI_OVER_NATIVE_MS))


async def _in_turn(systems: dict[str, RoundTrip], paced_s: float) -> dict[str, list[float]]:
    """Each system is asked CONTROL_HZ times a second; one that comes late makes nobody wait but those behind it."""
    names = list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    slot_s, begin_s = PERIOD_S / len(names), time.perf_counter() + 0.05
    for tick in range(NUM_WARMUPS + round(paced_s * CONTROL_HZ)):
        for position in range(len(names)):
            name = names[(position + tick) % len(names)]
            due_s = begin_s + (tick * len(names) + position) * slot_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            start_s = time.perf_counter()
            await systems[name]()
            if tick >= NUM_WARMUPS:
                seconds[name].append(time.perf_counter() - start_s)
    return seconds


# ---- several openpi clients


def _crowd_case(num_clients: int) -> str:
    return f"shipped policy, {num_clients} openpi clients that ask 30 times a second each"


async def _crowd(report: Report, system: str, port: int, num_clients: int, seconds: float) -> None:
    scenes = tabletop_scenes()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(OpenpiClient(port)) for _ in range(num_clients)]
        for _ in range(NUM_WARMUPS // 10):
            await asyncio.gather(*(client.infer(openpi_message(scenes[0])) for client in clients))
        took = await asyncio.gather(
            *(_ask_at_rate(client, scenes, index / num_clients, seconds) for index, client in enumerate(clients))
        )
    latencies = [value for each in took for value in each]
    case = _crowd_case(num_clients)
    report.rows += percentile_rows(case, system, latencies)
    report.rows.append(Row(case, system, "answered per client", len(latencies) / num_clients / seconds, "Hz"))


async def _ask_at_rate(client: OpenpiClient, scenes: Sequence[Scene], phase: float, seconds: float) -> list[float]:
    """At each period, or as soon as the last one is answered; returns how long each answer took."""
    messages = [openpi_message(scene) for scene in scenes]
    took_s: list[float] = []
    begin_s = time.perf_counter()
    due_s = begin_s + phase * PERIOD_S
    while due_s < begin_s + seconds:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        start_s = time.perf_counter()
        await client.infer(messages[len(took_s) % len(messages)])
        took_s.append(time.perf_counter() - start_s)
        due_s = max(due_s + PERIOD_S, time.perf_counter())
    return took_s


# ---- a second client, while the first one is served

HANDSHAKE = f"a second client's handshake while the first is served for {SLOW_MS:.0f} ms"


async def _handshakes(report: Report, system: str, port: int, count: int) -> None:
    message = openpi_message(noise_scenes()[0])
    took_s: list[float] = []
    async with OpenpiClient(port) as first:
        await first.infer(message)
        for _ in range(count):
            asking = asyncio.create_task(first.infer(message))
            await asyncio.sleep(SLOW_MS / 1e3 / 10)  # so that it is under way
            start_s = time.perf_counter()
            async with OpenpiClient(port):
                took_s.append(time.perf_counter() - start_s)
            await asking
    report.rows += percentile_rows(HANDSHAKE, system, took_s)
    report.rows.append(Row(HANDSHAKE, system, "max", max(took_s) * 1e3, "ms"))


def _compare(report: Report, effort: Effort) -> None:
    def found(case: str, system: str, metric: str) -> float:
        return next(row.value for row in report.rows if (row.case, row.system, row.metric) == (case, system, metric))

    handshake = found(HANDSHAKE, OPENPI, "p50")
    report.checks.append(
        Check.at_most("openpi dialect, a second client's handshake, ms p50", handshake, MAX_HANDSHAKE_MS)
    )
    case = _crowd_case(max(effort.crowds))
    ratio = found(case, PATTERN, "p99") / found(case, OPENPI, "p99")
    report.checks.append(Check.at_least(f"{case}: p99 of openpi's server pattern over ours", ratio, 1.0))
