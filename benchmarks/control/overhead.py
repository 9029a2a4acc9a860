"""What the path from a robot to a policy and back costs, with a policy that does nothing, beside a bare echo."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks.control import NOOP, POLICY
from benchmarks.control.echo import echoing
from benchmarks.control.scene import Scene, answer_bytes, noise_scenes, request_bytes, tabletop_scenes
from benchmarks.report import Check, Report, Row, percentile_rows
from mstar_rt.client import AsyncClient
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.client.results import Timing

CONTROL_HZ = 50.0
ECHO, BYTES, SHARED = "bare grpc.aio echo", "served, bytes", "served, shared memory"
ONE = "one robot at 50 Hz, three 224x224 images up, [50, 32] down"
MAX_OVER_P50_MS, MAX_OVER_P99_MS, MAX_SHARED_P50_MS = 1.0, 3.0, 0.8
NUM_WARMUPS = 50
TIMEOUT_S = 10.0
SETTLE_S = 1.0
MAX_GROWTH = 2.0
"""How much older the answered observations may be at the end of an overload than at its beginning."""

RoundTrip = Callable[[], Awaitable[Timing | None]]


@dataclass(frozen=True)
class Effort:
    paced_s: float
    crowds: tuple[int, ...]
    crowd_s: float


QUICK = Effort(8.0, (1, 16), 0.7)
FULL = Effort(60.0, (1, 4, 16), 4.0)


async def measure(report: Report, client: AsyncClient, quick: bool) -> None:
    effort = QUICK if quick else FULL
    scenes = noise_scenes()
    await _one_robot(report, client, scenes, effort.paced_s)
    for num_robots in effort.crowds:
        for system in (BYTES, SHARED):
            opens = functools.partial(_session, client, system == SHARED)
            await _crowd(
                report, f"no-op policy, {num_robots} robots", system, opens, scenes, num_robots, effort.crowd_s
            )
    await _overload(report, client, effort)


def _session(client: AsyncClient, shared_memory: bool) -> AsyncControlSession:
    return client.control(NOOP, control_hz=CONTROL_HZ, shared_memory=shared_memory)


# ---- one robot


async def _one_robot(report: Report, client: AsyncClient, scenes: Sequence[Scene], paced_s: float) -> None:
    async with (
        echoing(request_bytes(scenes[0]), answer_bytes()) as echo,
        _session(client, False) as by_bytes,
        _session(client, True) as by_memory,
    ):
        systems: dict[str, RoundTrip] = {
            ECHO: echo.round_trip,
            BYTES: functools.partial(_served, by_bytes, itertools.cycle(scenes)),
            SHARED: functools.partial(_served, by_memory, itertools.cycle(scenes)),
        }
        seconds, timings = await _paced(systems, paced_s)
        assert by_memory.stats.num_shared == by_memory.stats.num_observations, "images went through the connection"
    for system, values in seconds.items():
        report.rows += percentile_rows(ONE, system, values)
        report.rows.append(Row(ONE, system, "max", max(values) * 1e3, "ms"))
        report.rows.append(Row(ONE, system, "calls", len(values), ""))
    for system in (BYTES, SHARED):
        report.rows += _split(system, seconds[system], timings[system])
    _check_overhead(report, seconds)


async def _served(session: AsyncControlSession, scenes: itertools.cycle[Scene]) -> Timing:
    scene = next(scenes)
    seq = await session.send(scene.images, scene.state)
    return (await session.wait_for_chunk(seq, TIMEOUT_S)).timing


async def _paced(
    systems: dict[str, RoundTrip], paced_s: float
) -> tuple[dict[str, list[float]], dict[str, list[Timing]]]:
    """Every system at 50 Hz for `paced_s`, in turn within each period, another one first in each."""
    names = list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    timings: dict[str, list[Timing]] = {name: [] for name in names}
    slot_s = 1 / CONTROL_HZ / len(names)
    begin_s = time.perf_counter() + 0.05
    for tick in range(NUM_WARMUPS + round(paced_s * CONTROL_HZ)):
        for position in range(len(names)):
            name = names[(position + tick) % len(names)]
            due_s = begin_s + (tick * len(names) + position) * slot_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            start_s = time.perf_counter()
            timing = await systems[name]()
            if tick >= NUM_WARMUPS:
                seconds[name].append(time.perf_counter() - start_s)
                if timing is not None:
                    timings[name].append(timing)
    return seconds, timings


def _split(system: str, seconds: Sequence[float], timings: Sequence[Timing]) -> list[Row]:
    """Medians of where the time goes; what is between server and conductor, conductor and worker counts as messages."""
    parts: dict[str, list[float]] = {}
    for took_s, timing in zip(seconds, timings, strict=True):
        run_us = sum(node.run_us for node in timing.nodes.values())
        in_runtime_us = timing.decode_us + timing.runtime_us + timing.encode_us
        for name, value in (
            ("client, network", took_s * 1e6 - timing.total_us),
            ("decode", timing.decode_us),
            ("queue", timing.queue_us),
            ("node", run_us),
            ("runtime", timing.runtime_us - timing.queue_us - run_us),
            ("encode", timing.encode_us),
            ("messages", timing.total_us - in_runtime_us),
        ):
            parts.setdefault(name, []).append(value)
    case = "where one robot's time goes, p50"
    return [Row(case, system, name, float(np.median(values)), "us") for name, values in parts.items()]


def _check_overhead(report: Report, seconds: dict[str, list[float]]) -> None:
    p50, p99 = ({name: float(np.percentile(v, p)) * 1e3 for name, v in seconds.items()} for p in (50, 99))
    for name, values, bound in (("p50", p50, MAX_OVER_P50_MS), ("p99", p99, MAX_OVER_P99_MS)):
        over_ms = values[BYTES] - values[ECHO]
        report.checks.append(Check.at_most(f"served more than the echo, ms {name}", over_ms, bound))
    report.checks.append(Check.at_most("served through shared memory, ms p50", p50[SHARED], MAX_SHARED_P50_MS))


# ---- many robots


async def _overload(report: Report, client: AsyncClient, effort: Effort) -> None:
    """The shipped policy, asked for several times as many chunks as it can make: what is too much must be shed."""
    scenes = tabletop_scenes()

    def opens() -> AsyncControlSession:
        return client.control(POLICY, control_hz=CONTROL_HZ, instruction=scenes[0].instruction)

    num_robots = max(effort.crowds)
    case = f"shipped policy, {num_robots} robots"
    ages, num_lost = await _crowd(report, case, SHARED, opens, scenes, num_robots, 2 * effort.crowd_s)
    growth = _growth(ages)
    report.checks.append(
        Check.at_most(f"overload, {case}: age of what is answered, late over early", growth, MAX_GROWTH)
    )
    report.checks.append(Check.at_most(f"overload, {case}: observations without an end", num_lost, 0))


async def _crowd(
    report: Report, case: str, system: str, opens: Callable[[], AsyncControlSession], scenes: Sequence[Scene],
    num_robots: int, seconds: float,
) -> tuple[list[np.ndarray], int]:  # fmt: skip
    """Robots that send an observation every 20 ms, whether the last one is answered or not. Returns the ages of each
    robot's answered observations at their answer, in seconds, and how many observations had no end.
    """
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(opens()) for _ in range(num_robots)]
        async with asyncio.TaskGroup() as robots:
            for index, session in enumerate(sessions):
                robots.create_task(_send_at_rate(session, scenes, index / num_robots, seconds))
        await asyncio.sleep(SETTLE_S)  # so that each observation has an end
        all_stats = [session.stats for session in sessions]
    ages = [stats.chunk_latencies_s for stats in all_stats]
    sent = sum(stats.num_observations for stats in all_stats)
    answered = sum(map(len, ages))
    ended = answered + sum(
        stats.events.get(kind, 0) for stats in all_stats for kind in ("dropped_stale", "overwritten", "dropped_late")
    )
    case = f"{case}, 50 observations/s each"
    report.rows += percentile_rows(case, system, np.concatenate(ages))
    for metric, value, unit in (
        ("max", float(np.max(np.concatenate(ages))) * 1e3, "ms"),
        ("answered per robot", answered / num_robots / seconds, "Hz"),
        ("shed", 100 * (1 - answered / sent), "%"),
        ("without an end", sent - ended, ""),
    ):
        report.rows.append(Row(case, system, metric, value, unit))
    return ages, sent - ended


def _growth(ages: Sequence[np.ndarray]) -> float:
    """p95 of the last third of each robot's answers over that of the second."""
    thirds = [np.array_split(each, 3) for each in ages]
    middle, last = (np.concatenate([parts[index] for parts in thirds]) for index in (1, 2))
    return float(np.percentile(last, 95) / np.percentile(middle, 95)) if len(last) and len(middle) else float("inf")


async def _send_at_rate(session: AsyncControlSession, scenes: Sequence[Scene], phase: float, seconds: float) -> None:
    begin_s = time.perf_counter()
    for tick in range(round(seconds * CONTROL_HZ)):
        due_s = begin_s + (tick + phase) / CONTROL_HZ
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        scene = scenes[tick % len(scenes)]
        await session.send(scene.images, scene.state)
