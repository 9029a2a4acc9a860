"""A slow policy and a robot that executes an action per tick, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest
from control_stream import Held, Robot, actions_of, answer, opened, policy_runtime
from toy_policy import ACTION, POLICY
from toy_runtime import Job, ToyRuntime

from mstar_rt.clock import ManualClock
from mstar_rt.protos import control_pb2 as wire

HORIZON, HZ = 50, 30.0
TICK_NS = int(1e9 / HZ)


class Ticking:
    """Executes what it has, holds where it has nothing, and observes at every tick."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._tick = self._seq = 0
        self._chunk: tuple[int, int, np.ndarray] | None = None
        self._ticks_of: dict[int, int] = {}
        self.num_starved = 0
        self.delays: list[int] = []

    def observe(self) -> None:
        self._seq += 1
        self._ticks_of[self._seq] = self._tick
        if self._chunk is None:
            self._robot.observe(self._seq, executed_index=-1)
        else:
            seq, first, _ = self._chunk
            self._robot.observe(self._seq, executed_index=self._tick - first - 1, executed_chunk_seq=seq)

    def hear(self) -> None:
        """All that the server has said until now."""
        self._robot.say(heartbeat=wire.Heartbeat())
        while not isinstance(heard := self._robot.hear(), wire.Heartbeat):
            if isinstance(heard, wire.ActionChunk):
                self._chunk = heard.answers_seq, self._ticks_of[heard.answers_seq], actions_of(heard)
                self.delays.append(heard.delay_assumed)

    def execute(self) -> None:
        if self._chunk is None:
            return
        if self._tick - self._chunk[1] < HORIZON:
            self._tick += 1
        else:
            self.num_starved += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def runtime(clock: ManualClock) -> Iterator[ToyRuntime]:
    with policy_runtime(replace(POLICY, action_horizon=HORIZON), clock=clock) as running:
        yield running


def give(job: Job) -> None:
    answer(job, np.zeros((HORIZON, ACTION), np.float32))


@pytest.mark.parametrize("mode", [None, wire.RealTimeChunking.MODE_GUIDED])
def test_a_policy_of_350_ms_does_not_starve_a_robot(
    runtime: ToyRuntime, channel: grpc.Channel, clock: ManualClock, mode: int | None
) -> None:
    """H = 50 at 30 Hz. The delay of 11 ticks is known from the second answer on, whatever the first one took."""
    chunking = None if mode is None else {"mode": mode}
    robot = Ticking(opened(channel, control_hz=HZ, budget_ms=None, chunking=chunking))
    held, done_ns, num_done = Held(runtime), None, 0
    for _ in range(240):
        robot.observe()
        robot.hear()
        if done_ns is None:
            held.wait(num_done + 1)
            done_ns = clock.now_ns() + (1_200_000_000 if num_done == 0 else 350_000_000)
        clock.advance_ns(TICK_NS)
        if done_ns is not None and clock.now_ns() >= done_ns:
            held.end(give)
            num_done, done_ns = num_done + 1, None
        robot.hear()
        robot.execute()
    assert robot.num_starved == 0
    assert num_done > 10
    if mode is not None:
        assert robot.delays[:2] == [0, 1]
        assert set(robot.delays[2:]) <= {11, 12}
