"""One robot in the hands of a served policy: observe, act, at a fixed rate, and keep what there was to see."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mstar_rt.client.control.action_queue import RobotAction
from mstar_rt.client.control.results import ActionChunk
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.tabletop_servo import CONTROL_HZ


class Session(Protocol):
    """What is used here of an AsyncControlSession."""

    async def act(self, images: Any, state: Any = None) -> RobotAction: ...

    def latest(self) -> ActionChunk | None: ...

    async def reset(self, instruction: str | None = None, *, seed: int | None = None) -> None: ...


class TickClock(Protocol):
    """Time for the ticks; tests give one that does not wait."""

    def now_s(self) -> float: ...

    async def sleep_until(self, when_s: float) -> None: ...


class RealTime:
    def now_s(self) -> float:
        return time.monotonic()

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - self.now_s()))


@dataclass(frozen=True)
class TickRecord:
    """`late_s`: how much later than its time the tick began. Places [2] are metres, before the action."""

    action: RobotAction
    late_s: float
    effector_xy: NDArray[np.float64]
    puck_xy: NDArray[np.float64]


@dataclass
class PolicyEpisode:
    """What became of one episode. `error`: the session ended for good, and why."""

    task: str
    seed: int
    success: bool = False
    ticks: list[TickRecord] = field(default_factory=list)
    chunks: list[ActionChunk] = field(default_factory=list)
    error: str | None = None


async def drive(session: Session, episode: PolicyEpisode, clock: TickClock) -> None:
    """Run an episode to its end, filling in `episode`. The robot moves while it waits, as time does: a tick without an
    action of a chunk repeats the last target.

    Raises:  MstarError: the session has ended for good.
    """
    env = InstructionEnv(episode.task)
    observation, info = env.reset(seed=episode.seed)
    await session.reset(env.instruction, seed=episode.seed)
    due_s, over = clock.now_s(), False
    target = np.asarray(observation["state"], np.float64)
    try:
        while not over:
            await clock.sleep_until(due_s)
            late_s = clock.now_s() - due_s
            action = await session.act(observation["images"], observation["state"])
            _keep_chunk(session.latest(), episode.chunks)
            episode.ticks.append(TickRecord(action, late_s, info["effector_xy"], info["puck_xy"]))
            target = target if action.action is None else action.action
            observation, _, solved, truncated, info = env.step(target)
            over = solved or truncated
            due_s = _next_tick_s(due_s, clock.now_s())
        episode.success = bool(info["success"])
    finally:
        env.close()


def _next_tick_s(due_s: float, now_s: float) -> float:
    """Ticks stay on the grid of the period. One that is missed is not made up for: no robot is to move faster then."""
    periods = max(1, int((now_s - due_s) * CONTROL_HZ))
    return due_s + periods / CONTROL_HZ


def _keep_chunk(latest: ActionChunk | None, chunks: list[ActionChunk]) -> None:
    if latest is not None and (not chunks or chunks[-1].seq != latest.seq):
        chunks.append(latest)
