"""Per-hop costs, on one rank and between two, beside a plain Python loop and beside the bare transport.

What a step costs is the slope between a short and a long loop of one request, so that what a request costs once is not
in it; medians of alternating runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.noop.model import build_nodes, declare
from benchmarks.report import Check, Report, Row, percentile_rows
from benchmarks.runtime.zmq_echo import echo_seconds
from mstar_rt.client import AsyncClient, connect_async
from mstar_rt.model import NodeCall, NodeResources
from sim_bridge.server_process import served

SIZES = {"1 kB": 1 << 10, "1 MB": 1 << 20, "16 MB": 1 << 24}
CONCURRENCY = (1, 8, 64, 256)
ONE_RANK, TWO_RANKS = "one rank", "two ranks"
PLAIN, ZEROMQ = "plain Python loop", "ZeroMQ echo"
MAX_LOOP_STEP_US, MAX_LOOP_STEP_ACROSS_US, MAX_ROUND_TRIP_MS = 60.0, 250.0, 1.5


@dataclass(frozen=True)
class Effort:
    """How much to measure. Concurrent requests take `concurrent_steps` loop steps each."""

    repeats: int
    long_loop: int
    concurrent_steps: int
    round_trips: int


QUICK = Effort(repeats=3, long_loop=100, concurrent_steps=10, round_trips=100)
FULL = Effort(repeats=15, long_loop=1000, concurrent_steps=100, round_trips=2000)


async def measure(report: Report, effort: Effort) -> None:
    with _noop_server() as address:
        async with connect_async(address) as client:
            await _round_trips(report, client, effort)
            await _loop_steps(report, client, effort)
            for label, num_bytes in SIZES.items():
                await _hops(report, client, effort, label, num_bytes)
            await _growth(report, client, effort)


@contextlib.contextmanager
def _noop_server() -> Iterator[str]:
    """`near` has all nodes on rank 0, `far` has `right` and `take` on rank 1."""
    data = {
        "name": "hops",
        "server": {"max_message_mb": 64},
        "admission": {"max_requests_per_client": max(CONCURRENCY)},
        "workers": [{"rank": rank, "max_batch": 64, "shared_memory_mb": 2048} for rank in (0, 1)],
        "models": [{"name": name, "family": "benchmarks.noop.model:declare"} for name in ("near", "far")],
        "placement": [{"model": "far", "nodes": ["right", "take"], "ranks": [1]}],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hops.yaml"
        file.write_text(yaml.safe_dump(data))
        with served(file) as address:
            yield address


async def _round_trips(report: Report, client: AsyncClient, effort: Effort) -> None:
    x = np.zeros(1024, np.uint8)
    seconds = []
    for index in range(effort.round_trips + 50):
        start_s = time.perf_counter()
        (output,) = await client.run("near", "echo", {"x": x}).collect()
        if index >= 50:
            seconds.append(time.perf_counter() - start_s)
        assert output.value.nbytes == x.nbytes
    report.rows += percentile_rows("request round trip, 1 kB", ONE_RANK, seconds)
    bare = echo_seconds(1 << 10, effort.round_trips)
    report.rows += percentile_rows("request round trip, 1 kB", ZEROMQ, bare)
    ratio = float(np.median(seconds) / np.median(bare))
    report.rows.append(Row("request round trip, 1 kB", ONE_RANK, "time over ZeroMQ", ratio, "x"))
    p50_ms = float(np.median(seconds)) * 1e3
    report.checks.append(Check.at_most("request round trip, ms p50", p50_ms, MAX_ROUND_TRIP_MS))


async def _loop_steps(report: Report, client: AsyncClient, effort: Effort) -> None:
    """One iteration of a DynamicLoop: one node on one rank; two nodes on two ranks, so there and back."""
    x = np.zeros(16, np.uint8)
    near_s = await _slope(client, "near", "turn", x, effort)
    far_s = await _slope(client, "far", "hop", x, effort)
    case = "DynamicLoop step"
    report.rows.append(Row(case, ONE_RANK, "per step", near_s * 1e6, "us"))
    report.rows.append(Row(case, TWO_RANKS, "per step", far_s * 1e6, "us"))
    report.rows.append(Row(case, PLAIN, "per step", _plain_step_s() * 1e6, "us"))
    report.rows.append(Row(case, ONE_RANK, "time over plain loop", near_s / _plain_step_s(), "x"))
    report.checks.append(Check.at_most("DynamicLoop step, one rank, us", near_s * 1e6, MAX_LOOP_STEP_US))
    report.checks.append(Check.at_most("DynamicLoop step, two ranks, us", far_s * 1e6, MAX_LOOP_STEP_ACROSS_US))


async def _hops(report: Report, client: AsyncClient, effort: Effort, label: str, num_bytes: int) -> None:
    """From one node to the next, half an iteration of a loop around two nodes."""
    x = np.zeros(num_bytes, np.uint8)
    if num_bytes > 1 << 20:
        effort = Effort(effort.repeats, effort.long_loop // 10, effort.concurrent_steps, effort.round_trips // 20)
    near_s = await _slope(client, "near", "hop", x, effort) / 2
    far_s = await _slope(client, "far", "hop", x, effort) / 2
    bare_s = float(np.median(echo_seconds(num_bytes, max(effort.round_trips // 4, 20)))) / 2
    case = f"hop, {label}"
    for system, seconds in ((ONE_RANK, near_s), (TWO_RANKS, far_s), (ZEROMQ, bare_s)):
        report.rows.append(Row(case, system, "per hop", seconds * 1e6, "us"))
    report.rows.append(Row(case, TWO_RANKS, "time over ZeroMQ", far_s / bare_s, "x"))


async def _growth(report: Report, client: AsyncClient, effort: Effort) -> None:
    """What a request costs does not grow with how many run at once."""
    for model, walk, system in (("near", "turn", ONE_RANK), ("far", "hop", TWO_RANKS)):
        alone_s, *others_s = [
            await _concurrent(report, client, effort, num_requests, model, walk, system) for num_requests in CONCURRENCY
        ]
        for num_requests, per_request_s in zip(CONCURRENCY[1:], others_s, strict=True):
            name = f"a request of {num_requests} at once over one alone, {system}"
            report.checks.append(Check.at_most(name, per_request_s / alone_s, 1.0))


async def _concurrent(
    report: Report, client: AsyncClient, effort: Effort, num_requests: int, model: str, walk: str, system: str
) -> float:
    """Seconds per request when many run at once."""
    x = np.zeros(16, np.uint8)
    seconds = []
    for _ in range(1 + effort.repeats // 3):
        start_s = time.perf_counter()
        steps = effort.concurrent_steps
        runs = (client.run(model, walk, {"x": x}, steps=steps).collect() for _ in range(num_requests))
        await asyncio.gather(*runs)
        seconds.append((time.perf_counter() - start_s) / num_requests)
    case = f"{num_requests} requests at once"
    per_request_s = float(np.median(seconds[1:] or seconds))
    report.rows.append(Row(case, system, "per request", per_request_s * 1e3, "ms"))
    report.rows.append(Row(case, system, "per step", per_request_s / effort.concurrent_steps * 1e6, "us"))
    return per_request_s


async def _slope(client: AsyncClient, model: str, task: str, x: np.ndarray, effort: Effort) -> float:
    """Seconds per loop iteration of one request."""
    short, long = effort.long_loop // 10, effort.long_loop
    seconds: dict[int, list[float]] = {short: [], long: []}
    for repeat in range(effort.repeats + 1):
        for steps in (short, long):
            start_s = time.perf_counter()
            stream = client.run(model, task, {"x": x}, steps=steps)
            (output,) = await stream.collect()
            took_s = time.perf_counter() - start_s
            assert stream.done is not None
            assert output.value.shape == (1,)
            assert {loop.num_iterations for loop in stream.done.timing.loops.values()} == {steps}
            if repeat:
                seconds[steps].append(took_s)
    return float(np.median(seconds[long]) - np.median(seconds[short])) / (long - short)


def _plain_step_s(num_steps: int = 20_000) -> float:
    """The same node called in a Python loop."""
    import torch

    node = build_nodes(declare("plain", "", {}), NodeResources())["step"]
    x = torch.zeros(16, dtype=torch.uint8)
    start_s = time.perf_counter()
    for step in range(num_steps):
        call = NodeCall("plain", "plain", "turn", (step,), {"x": x}, {}, time.monotonic_ns)
        x = node.run([call])[0].outputs["x"]
    return (time.perf_counter() - start_s) / num_steps
