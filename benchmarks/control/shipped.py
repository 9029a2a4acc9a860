"""The shipped policy end to end, beside the plain loop that its training uses: same weights, threads and flow steps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from benchmarks.control import COMPILED_POLICY, POLICY, WEIGHTS
from benchmarks.control.scene import Scene, tabletop_scenes
from benchmarks.report import Check, Report, Row, percentile_rows
from mstar_rt.client import AsyncClient
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.client.control.results import ActionChunk
from policies.pi05.train.in_process import InProcessPolicy

PLAIN, SERVED, COMPILED = "plain loop in process", "served over gRPC", "served, compile: true"
MODELS = {SERVED: POLICY, COMPILED: COMPILED_POLICY}
MAX_ERROR_M = 1e-4
MAX_OVER_PLAIN = 1.05
NUM_WARMUPS = 5
TIMEOUT_S = 30.0
MAX_HZ = 1000.0


@dataclass(frozen=True)
class Effort:
    calls: int
    crowds: tuple[int, ...]
    crowd_s: float


QUICK = Effort(60, (1, 4, 8), 1.0)
FULL = Effort(400, (1, 4, 8), 5.0)


async def measure(report: Report, client: AsyncClient, quick: bool) -> None:
    effort = QUICK if quick else FULL
    scenes = tabletop_scenes()
    plain = InProcessPolicy.load(WEIGHTS.parent)
    async with AsyncExitStack() as stack:
        sessions = {
            system: await stack.enter_async_context(_session(client, scenes[0], model))
            for system, model in MODELS.items()
        }
        for system, session in sessions.items():
            error = await _largest_error(session, plain, scenes)
            report.rows.append(Row(_case(plain), system, "largest difference of an action", error * 1e6, "um"))
            assert error <= MAX_ERROR_M, f"{system}: actions differ from those of the plain loop by {error} m"
        seconds, chunks = await _alternating(sessions, plain, scenes, effort.calls)
    for system, values in seconds.items():
        report.rows += percentile_rows(_case(plain), system, values)
        report.rows.append(Row(_case(plain), system, "calls", len(values), ""))
    for system in MODELS:
        ratio = float(np.median(seconds[system]) / np.median(seconds[PLAIN]))
        report.rows.append(Row(_case(plain), system, "time over the plain loop", ratio, "x"))
        report.checks.append(
            Check.at_most(f"the shipped policy, {system}, over plain loop, p50", ratio, MAX_OVER_PLAIN)
        )
        report.rows += _split(system, seconds[system], chunks[system])
    await _crowds(report, client, plain, scenes, effort)


def _case(plain: InProcessPolicy) -> str:
    return f"shipped policy, one robot, {plain.settings.num_denoise_steps} flow steps"


def _session(client: AsyncClient, scene: Scene, model: str = POLICY) -> AsyncControlSession:
    """It asks as fast as it is answered, and says so: what comes faster than was admitted waits for others."""
    return client.control(model, control_hz=MAX_HZ, instruction=scene.instruction)


async def _largest_error(session: AsyncControlSession, plain: InProcessPolicy, scenes: Sequence[Scene]) -> float:
    """From the same noise, over all scenes."""
    network = plain.settings.network
    shape = (network.action_horizon, network.action_dim)
    generator = np.random.default_rng(1)
    errors = []
    for scene in scenes:
        noise = generator.normal(size=shape).astype(np.float32)
        chunk = await _served(session, scene, noise)
        expected = _plain(plain, [scene], noise[None])[0]
        assert chunk.num_denoise_steps == plain.settings.num_denoise_steps, "other flow steps"
        errors.append(np.abs(chunk.actions - expected).max())
    return float(np.max(errors))


async def _served(session: AsyncControlSession, scene: Scene, noise: np.ndarray | None = None) -> ActionChunk:
    seq = await session.send(scene.images, scene.state, noise=noise)
    return await session.wait_for_chunk(seq, TIMEOUT_S)


def _plain(plain: InProcessPolicy, scenes: Sequence[Scene], noise: np.ndarray | None = None) -> np.ndarray:
    observations = [{"images": scene.images, "state": scene.state} for scene in scenes]
    return plain.chunks(observations, [scene.instruction or "" for scene in scenes], noise=noise)


async def _alternating(
    sessions: Mapping[str, AsyncControlSession], plain: InProcessPolicy, scenes: Sequence[Scene], calls: int
) -> tuple[dict[str, list[float]], dict[str, list[ActionChunk]]]:
    seconds: dict[str, list[float]] = {PLAIN: [], **{system: [] for system in sessions}}
    chunks: dict[str, list[ActionChunk]] = {system: [] for system in sessions}
    for call in range(NUM_WARMUPS + calls):
        scene = scenes[call % len(scenes)]
        took_s = {PLAIN: _timed_plain(plain, scene)}
        for system, session in sessions.items():
            start_s = time.perf_counter()
            chunk = await _served(session, scene)
            took_s[system] = time.perf_counter() - start_s
            if call >= NUM_WARMUPS:
                chunks[system].append(chunk)
        if call >= NUM_WARMUPS:
            for system, value in took_s.items():
                seconds[system].append(value)
    return seconds, chunks


def _timed_plain(plain: InProcessPolicy, scene: Scene) -> float:
    start_s = time.perf_counter()
    _plain(plain, [scene])
    return time.perf_counter() - start_s


def _split(system: str, seconds: Sequence[float], chunks: Sequence[ActionChunk]) -> list[Row]:
    """Medians of one chunk's milliseconds, by node; `between` is what the runtime does around them."""
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for took_s, chunk in zip(seconds, chunks, strict=True):
        timing = chunk.timing
        for name, node in timing.nodes.items():
            parts[f"{name} x{node.num_steps}"].append(node.run_us / 1e3)
        edge_us = timing.decode_us + timing.encode_us
        parts["between"].append((timing.total_us - edge_us - sum(n.run_us for n in timing.nodes.values())) / 1e3)
        parts["edge"].append(edge_us / 1e3)
        parts["client, network"].append(took_s * 1e3 - timing.total_us / 1e3)
    return [Row("where a chunk's time goes, p50", system, n, float(np.median(v)), "ms") for n, v in parts.items()]


# ---- several robots at once


async def _crowds(
    report: Report, client: AsyncClient, plain: InProcessPolicy, scenes: Sequence[Scene], effort: Effort
) -> None:
    """Each asks again as soon as it is answered. The plain loop gets as many observations in one batch."""
    one_hz: dict[str, float] = {}
    for num_robots in effort.crowds:
        case = f"shipped policy, {num_robots} robots at once"
        took_s = _batches(plain, [scenes[i % len(scenes)] for i in range(num_robots)], effort.crowd_s / 2)
        found = {PLAIN: (took_s, num_robots / float(np.median(took_s)))}
        for system, model in MODELS.items():
            latencies, seconds = await _crowd(client, model, scenes, num_robots, effort.crowd_s)
            found[system] = (latencies, len(latencies) / seconds)
        for system, (values, hz) in found.items():
            report.rows += percentile_rows(case, system, values)
            report.rows.append(Row(case, system, "chunks", hz, "Hz"))
            report.rows.append(Row(case, system, "gain of batching", hz / one_hz.setdefault(system, hz), "x"))


async def _crowd(
    client: AsyncClient, model: str, scenes: Sequence[Scene], num_robots: int, seconds: float
) -> tuple[list[float], float]:
    latencies: list[float] = []

    async def drive(session: AsyncControlSession, first: int, end_s: float) -> None:
        for index in itertools.count(first):
            if time.perf_counter() >= end_s:
                return
            latencies.append((await _served(session, scenes[index % len(scenes)])).latency_s)

    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(_session(client, scenes[0], model)) for _ in range(num_robots)]
        await asyncio.gather(*(_served(session, scenes[0]) for session in sessions))
        begin_s = time.perf_counter()
        await asyncio.gather(*(drive(each, index, begin_s + seconds) for index, each in enumerate(sessions)))
        return latencies, time.perf_counter() - begin_s


def _batches(plain: InProcessPolicy, scenes: Sequence[Scene], seconds: float) -> list[float]:
    took_s: list[float] = []
    while sum(took_s) < seconds or len(took_s) < 4:
        start_s = time.perf_counter()
        _plain(plain, scenes)
        took_s.append(time.perf_counter() - start_s)
    return took_s[1:]
