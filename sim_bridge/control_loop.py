"""A fixed-rate control loop: observe, ask the policy, act, once every control period.

What happens to a plan that is late is said, not hoped: the robot holds (a zero action) from the moment its tick is over
until a plan arrives, the late plan is used at the next tick, and the tick counts as missed. One plan is in flight at a
time, so observations are never queued behind a slow policy.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mstar_rt.errors import InvalidArgument

Action = NDArray[np.floating]
Policy = Callable[[Any], "Sequence[Action] | Awaitable[Sequence[Action]]"]
"""From one observation to a list of actions, the first for this tick; plain or async."""


class Robot(Protocol):
    """What the loop drives. Both are called from the loop's own task, never at the same time."""

    def observe(self) -> Any: ...

    def act(self, action: Action) -> None: ...


class LoopClock(Protocol):
    """Time for the loop; tests give one that does not wait."""

    def now_s(self) -> float: ...

    async def wait(self, awaitable: asyncio.Future[Any], timeout_s: float) -> None:
        """Return when the future is done or the time is up, whichever is first. Never cancels it."""

    async def sleep_until(self, when_s: float) -> None: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    async def wait(self, awaitable: asyncio.Future[Any], timeout_s: float) -> None:
        await asyncio.wait((awaitable,), timeout=max(0.0, timeout_s))

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - self.now_s()))


@dataclasses.dataclass
class ControlReport:
    """What a run of the loop did. Latencies are per plan, seconds, from observation to plan."""

    num_ticks: int = 0
    num_missed: int = 0
    num_plans: int = 0
    plan_latencies_s: list[float] = dataclasses.field(default_factory=list)

    def latency_s(self, percentile: float) -> float:
        """Raises: InvalidArgument: no plan has arrived."""
        if not self.plan_latencies_s:
            raise InvalidArgument("no plan has arrived, so there is no latency to report; run the loop first")
        return float(np.percentile(self.plan_latencies_s, percentile))


class ControlLoop:
    """Runs `policy` on `robot` at `control_hz`.

    Args:
        replan_every: ticks that a plan is executed for before the policy is asked again; it must not exceed the
            length of the policy's plans.
        hold: the action that keeps the robot still, used when no action is due.
    """

    def __init__(
        self,
        robot: Robot,
        policy: Policy,
        *,
        control_hz: float,
        hold: Action,
        replan_every: int = 1,
        clock: LoopClock | None = None,
    ) -> None:
        if not control_hz > 0:
            raise InvalidArgument(f"control_hz must be positive, got {control_hz}")
        if replan_every < 1:
            raise InvalidArgument(f"replan_every must be at least 1 tick, got {replan_every}")
        self._robot = robot
        self._policy = policy
        self._period_s = 1.0 / control_hz
        self._hold = hold
        self._replan_every = replan_every
        self._clock: LoopClock = clock or MonotonicClock()
        self._queue: list[Action] = []
        self._in_flight: asyncio.Task[Sequence[Action]] | None = None
        self._asked_at_s = 0.0
        self.report = ControlReport()

    async def run(
        self, num_ticks: int, on_tick: Callable[[ControlReport], None] = lambda report: None
    ) -> ControlReport:
        """Run that many control periods. What the policy raises ends the run and is raised here."""
        tick_starts_s = self._clock.now_s()
        try:
            for _ in range(num_ticks):
                await self._tick(tick_starts_s + self._period_s)
                on_tick(self.report)
                tick_starts_s = await self._next_start(tick_starts_s)
        finally:
            await self._abandon_plan()
        return self.report

    async def _tick(self, deadline_s: float) -> None:
        if not self._queue:
            self._ask()
            await self._take_plan(deadline_s)
        late = not self._queue
        self._robot.act(self._hold if late else self._queue.pop(0))
        self.report.num_ticks += 1
        self.report.num_missed += late

    def _ask(self) -> None:
        if self._in_flight is None:
            self._asked_at_s = self._clock.now_s()
            self._in_flight = asyncio.ensure_future(_call(self._policy, self._robot.observe()))

    async def _take_plan(self, deadline_s: float) -> None:
        assert self._in_flight is not None
        await self._clock.wait(self._in_flight, deadline_s - self._clock.now_s())
        if not self._in_flight.done():
            return
        task, self._in_flight = self._in_flight, None
        self.report.plan_latencies_s.append(self._clock.now_s() - self._asked_at_s)
        self.report.num_plans += 1
        self._queue = _checked_plan(task.result(), self._replan_every)

    async def _next_start(self, tick_started_s: float) -> float:
        """Ticks stay on the grid of the period: a late one does not shift those after it, and none is made up for."""
        next_start_s = tick_started_s + self._period_s
        while next_start_s + self._period_s <= self._clock.now_s():
            next_start_s += self._period_s
        await self._clock.sleep_until(next_start_s)
        return next_start_s

    async def _abandon_plan(self) -> None:
        if self._in_flight is not None:
            self._in_flight.cancel()
            await asyncio.gather(self._in_flight, return_exceptions=True)
            self._in_flight = None


async def _call(policy: Policy, observation: Any) -> Sequence[Action]:
    """A plain policy runs in a thread, so that the loop can hold the robot while it thinks."""
    is_async = inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(type(policy).__call__)
    result = policy(observation) if is_async else await asyncio.to_thread(policy, observation)
    return await result if inspect.isawaitable(result) else result


def _checked_plan(plan: Sequence[Action], replan_every: int) -> list[Action]:
    if len(plan) < replan_every:
        raise InvalidArgument(
            f"the policy returned {len(plan)} actions but replan_every is {replan_every}; "
            "plan further ahead or replan more often"
        )
    return [np.asarray(action) for action in plan[:replan_every]]
