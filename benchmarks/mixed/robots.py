"""Robots that send an observation every period, whatever became of the one before, and note what came of each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.control.scene import Scene
from mstar_rt.client import AsyncClient
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.errors import MstarError

CONTROL_HZ = 20.0
PERIOD_S = 1 / CONTROL_HZ
LEAD_S = 0.05
"""From opening the sessions to the first tick."""

ANSWER_TIMEOUT_S = 2.0
"""By then an observation has its chunk, or an event that says that there is none."""


@dataclass(frozen=True)
class Tick:
    """One observation. `latency_s` from it to its chunk; None: there was none, or one that the robot has no use for."""

    due_ns: int
    sent_ns: int
    latency_s: float | None

    @property
    def missed(self) -> bool:
        return self.latency_s is None or self.latency_s > PERIOD_S


def open_session(client: AsyncClient, model: str, scene: Scene) -> AsyncControlSession:
    """Every tick wants a chunk, within its period."""
    return client.control(
        model, control_hz=CONTROL_HZ, instruction=scene.instruction, replan_every=1, budget_ms=PERIOD_S * 1e3
    )


async def drive_all(
    client: AsyncClient, model: str, scenes: Sequence[Scene], num_robots: int, seconds: float
) -> list[list[Tick]]:
    """Each robot's ticks; their periods begin at moments spread evenly.

    Raises:  ResourceExhausted: there are too many.
    """
    num_ticks = round(seconds * CONTROL_HZ)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(open_session(client, model, scenes[0])) for _ in range(num_robots)]
        return await asyncio.gather(
            *(
                drive(each, scenes, lambda number: number < num_ticks, index / num_robots)
                for index, each in enumerate(sessions)
            )
        )


async def drive(
    session: AsyncControlSession, scenes: Sequence[Scene], goes_on: Callable[[int], bool], phase: float = 0.0
) -> list[Tick]:
    """As long as `goes_on` says so of the next tick's number. `phase`: the part of a period by which they are later."""
    begin_ns = time.monotonic_ns() + int((LEAD_S + phase * PERIOD_S) * 1e9)
    ticks: list[asyncio.Task[Tick]] = []
    for number in itertools.takewhile(goes_on, itertools.count()):
        due_ns = begin_ns + int(number * PERIOD_S * 1e9)
        await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        ticks.append(asyncio.create_task(_tick(session, scenes[number % len(scenes)], due_ns)))
    return await asyncio.gather(*ticks)


async def _tick(session: AsyncControlSession, scene: Scene, due_ns: int) -> Tick:
    sent_ns = time.monotonic_ns()
    try:
        seq = await session.send(scene.images, scene.state)
        chunk = await session.wait_for_chunk(seq, ANSWER_TIMEOUT_S)
    except MstarError:
        return Tick(due_ns, sent_ns, None)
    return Tick(due_ns, sent_ns, chunk.latency_s if chunk.seq == seq else None)
