"""The control loop on simulated time: rate, late plans, replanning, failures."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mstar_rt.errors import InvalidArgument
from sim_bridge.control_loop import ControlLoop, ControlReport

HOLD = np.zeros(7)


class SimulatedClock:
    """Time that passes only when the loop waits; `work(s)` is how long a policy takes."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    async def work(self, duration_s: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self._now_s + duration_s, len(self._timers), done))
        await done

    async def wait(self, awaitable: asyncio.Future[Any], timeout_s: float) -> None:
        await self._advance(self._now_s + timeout_s, awaitable.done)

    async def sleep_until(self, when_s: float) -> None:
        await self._advance(when_s, lambda: False)

    async def _advance(self, until_s: float, done: Callable[[], bool]) -> None:
        while True:
            for _ in range(5):
                await asyncio.sleep(0)
            if done():
                return
            if not self._timers or self._timers[0][0] > until_s:
                self._now_s = max(self._now_s, until_s)
                return
            self._now_s, _, timer = heapq.heappop(self._timers)
            if not timer.done():
                timer.set_result(None)


class RecordingRobot:
    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.observed_at_s: list[float] = []
        self.acted: list[tuple[float, float]] = []

    def observe(self) -> int:
        self.observed_at_s.append(self._clock.now_s())
        return len(self.observed_at_s)

    def act(self, action: np.ndarray) -> None:
        self.acted.append((round(self._clock.now_s(), 6), float(action[0])))


def _run(
    durations_s: list[float], num_ticks: int, replan_every: int = 1, plan_length: int = 3
) -> tuple[RecordingRobot, ControlReport]:
    """A loop at 10 Hz whose n-th plan takes durations_s[n] and consists of actions n, n + 0.1, n + 0.2."""
    clock = SimulatedClock()
    robot = RecordingRobot(clock)

    async def policy(observation: int) -> list[np.ndarray]:
        await clock.work(durations_s[observation - 1])
        return [np.full(7, observation + 0.1 * step) for step in range(plan_length)]

    loop = ControlLoop(robot, policy, control_hz=10, hold=HOLD, replan_every=replan_every, clock=clock)
    return robot, asyncio.run(loop.run(num_ticks))


def test_acts_once_a_period_when_plans_are_in_time() -> None:
    robot, report = _run([0.02] * 4, num_ticks=4)
    assert robot.acted == [(0.02, 1.0), (0.12, 2.0), (0.22, 3.0), (0.32, 4.0)]
    assert (report.num_ticks, report.num_missed, report.num_plans) == (4, 0, 4)
    assert report.latency_s(50) == pytest.approx(0.02)


def test_a_late_plan_holds_the_robot_and_is_used_on_the_next_tick() -> None:
    robot, report = _run([0.02, 0.15, 0.02, 0.02], num_ticks=5)
    assert robot.acted == [(0.02, 1.0), (0.2, 0.0), (0.25, 2.0), (0.32, 3.0), (0.42, 4.0)]
    assert report.num_missed == 1
    assert report.num_ticks == 5
    assert max(report.plan_latencies_s) == pytest.approx(0.15)


def test_only_one_plan_is_in_flight() -> None:
    robot, report = _run([0.45, 0.01], num_ticks=6)
    assert robot.observed_at_s == pytest.approx([0.0, 0.5])
    assert report.num_missed == 4


def test_replans_every_so_many_ticks() -> None:
    robot, report = _run([0.02] * 2, num_ticks=5, replan_every=3)
    assert [value for _, value in robot.acted] == pytest.approx([1.0, 1.1, 1.2, 2.0, 2.1])
    assert report.num_plans == 2


def test_plain_policies_run_too() -> None:
    clock = SimulatedClock()
    robot = RecordingRobot(clock)

    class Real(SimulatedClock):
        async def wait(self, awaitable: asyncio.Future[Any], timeout_s: float) -> None:
            await asyncio.wait((awaitable,))

    loop = ControlLoop(robot, lambda observation: [np.ones(7)], control_hz=10, hold=HOLD, clock=Real())
    report = asyncio.run(loop.run(2))
    assert [value for _, value in robot.acted] == [1.0, 1.0]
    assert report.num_missed == 0


def test_what_the_policy_raises_reaches_the_caller() -> None:
    clock = SimulatedClock()

    async def policy(observation: int) -> list[np.ndarray]:
        raise ConnectionError("server gone")

    loop = ControlLoop(RecordingRobot(clock), policy, control_hz=10, hold=HOLD, clock=clock)
    with pytest.raises(ConnectionError, match="server gone"):
        asyncio.run(loop.run(3))


def test_a_plan_in_flight_is_cancelled_at_the_end() -> None:
    clock = SimulatedClock()
    cancelled = []

    async def policy(observation: int) -> list[np.ndarray]:
        try:
            await clock.work(100.0)
        except asyncio.CancelledError:
            cancelled.append(observation)
            raise
        return []

    loop = ControlLoop(RecordingRobot(clock), policy, control_hz=10, hold=HOLD, clock=clock)
    report = asyncio.run(loop.run(2))
    assert cancelled == [1]
    assert report.num_missed == 2


def test_reports_every_tick() -> None:
    clock = SimulatedClock()
    seen: list[int] = []

    async def policy(observation: int) -> list[np.ndarray]:
        return [HOLD]

    loop = ControlLoop(RecordingRobot(clock), policy, control_hz=10, hold=HOLD, clock=clock)
    asyncio.run(loop.run(3, on_tick=lambda report: seen.append(report.num_ticks)))
    assert seen == [1, 2, 3]


def test_refuses_what_cannot_work() -> None:
    clock = SimulatedClock()
    robot = RecordingRobot(clock)
    with pytest.raises(InvalidArgument, match="control_hz"):
        ControlLoop(robot, lambda observation: [HOLD], control_hz=0, hold=HOLD)
    with pytest.raises(InvalidArgument, match="replan_every"):
        ControlLoop(robot, lambda observation: [HOLD], control_hz=10, hold=HOLD, replan_every=0)
    with pytest.raises(InvalidArgument, match="returned 1 actions but replan_every is 2"):
        _run([0.01], num_ticks=1, replan_every=2, plan_length=1)
    with pytest.raises(InvalidArgument, match="no plan"):
        ControlReport().latency_s(50)
