"""Ten minutes of everything that goes wrong: random requests, cancels, disconnects, and a worker killed every minute.

What must hold at the end: every request had exactly one end, nothing is held, memory is flat, /dev/shm is as before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time

from benchmarks.report import Check, Report, Row, finish
from benchmarks.soak.actors import Actor, Ends
from benchmarks.soak.deployment import soaked_server
from benchmarks.soak.held import held_in
from benchmarks.soak.processes import ServerProcesses
from mstar_rt.client import AsyncClient, connect_async

NUM_ACTORS = 12
SEED = 0
SETTLE_S = 15.0
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # only listed
MAX_GROWTH_MB = 20.0
"""Of the most that a process had of its own in the second half of its longest life, over that of the first. A worker
keeps what it freed, so that each has a high-water mark, which comes when many large requests happen to share a step."""

MIN_RESULTS = 0.5
"""Of all requests, a third of which are cancelled or too late by intention."""

Memory = dict[tuple[str, int], list[tuple[float, float]]]
"""(seconds, MB) of each process, by name and process id."""


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    duration_s, kill_every_s = (30.0, 12.0) if args.quick else (600.0, 60.0)
    report = Report("soak", {"seconds": duration_s, "worker killed every, s": kill_every_s, "actors": NUM_ACTORS})
    asyncio.run(_soak(report, duration_s, kill_every_s))
    return finish(report, args)


async def _soak(report: Report, duration_s: float, kill_every_s: float) -> None:
    segments_before = _shm_segments()
    with soaked_server() as address:
        async with connect_async(address) as client:
            processes = ServerProcesses.of_child()
            ends = Ends()
            memory = await _run(client, address, processes, ends, duration_s, kill_every_s)
            left = await _left_at_idle(client)
            num_arenas = processes.num_arenas_of_the_dead()
            report.checks.append(Check.at_most("arenas of dead workers that are still mapped", num_arenas, 0))
            _report(report, ends, memory, left)
    lost = _shm_segments() - segments_before
    report.checks.append(Check.at_most("segments left in /dev/shm", len(lost), 0))


async def _run(
    client: AsyncClient, address: str, processes: ServerProcesses, ends: Ends, duration_s: float, kill_every_s: float
) -> Memory:
    """Memory of each process over the run."""
    end_s = time.monotonic() + duration_s
    actors = [Actor(address, ends, random.Random(SEED + index), end_s) for index in range(NUM_ACTORS)]
    running = [asyncio.create_task(actor.run()) for actor in actors]
    memory: Memory = {}
    next_kill_s = time.monotonic() + kill_every_s
    chooser = random.Random(SEED)
    while time.monotonic() < end_s:
        await asyncio.sleep(min(1.0, duration_s / 60))
        for process, private_mb in processes.private_mb().items():
            memory.setdefault(process, []).append((time.monotonic(), private_mb))
        # The last kill leaves time to recover.
        if time.monotonic() >= next_kill_s and end_s - time.monotonic() > kill_every_s / 2:
            next_kill_s += kill_every_s
            rank, pid = chooser.choice(sorted(processes.workers().items()))
            os.kill(pid, signal.SIGKILL)
            ends.count(f"worker {rank} killed")
    await asyncio.gather(*running)
    await client.wait_until_serving(timeout_s=60)
    return memory


async def _left_at_idle(client: AsyncClient) -> dict[str, float]:
    """What is still held once every release has had time to arrive; empty if nothing is lost."""
    left: dict[str, float] = {}
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:
        left = held_in(await client.stats())
        if not left:
            break
        await asyncio.sleep(0.2)
    return left


def _report(report: Report, ends: Ends, memory: Memory, left: dict[str, float]) -> None:
    report.rows += [Row(name, "requests and events", "count", count, "") for name, count in ends.sorted()]
    for name in sorted({name for name, _ in memory}):
        life = max((samples for (of, _), samples in memory.items() if of == name), key=_lasted_s)
        half_s = (life[0][0] + life[-1][0]) / 2
        early_mb = max(mb for at_s, mb in life if at_s <= half_s)
        late_mb = max(mb for at_s, mb in life if at_s >= half_s)
        measured = (("life", _lasted_s(life), "s"), ("first half", early_mb, "MB"), ("second half", late_mb, "MB"))
        for metric, value, unit in measured:
            report.rows.append(Row(name, "most own memory, longest life", metric, value, unit))
        report.checks.append(Check.at_most(f"growth of {name}'s memory, MB", late_mb - early_mb, MAX_GROWTH_MB))
    share = ends.num("result") / sum(count for name, count in ends.sorted() if "killed" not in name)
    report.checks.append(Check.at_least("share of requests that end with a result", share, MIN_RESULTS))
    report.checks.append(Check.at_most("requests without an end", ends.num("no end"), 0))
    report.checks.append(Check.at_most("requests with a wrong answer", ends.num("wrong"), 0))
    report.checks.append(Check.at_most("errors without a code of ours", ends.num("INTERNAL"), 0))
    report.checks.append(Check.at_most(f"held at idle {left or ''}", float(len(left)), 0))


def _lasted_s(life: list[tuple[float, float]]) -> float:
    return life[-1][0] - life[0][0]


def _shm_segments() -> set[str]:
    try:
        return set(os.listdir(SHARED_MEMORY))
    except OSError:
        return set()
