"""Budgets, failures, lost workers and the server's end, as a robot hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from control_stream import Held, Kind, Robot, answer, opened, policy_runtime
from toy_policy import HORIZON
from toy_runtime import ToyRuntime

from mstar_rt.clock import ManualClock
from mstar_rt.message import Submit
from mstar_rt.protos import control_pb2 as wire


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


@pytest.fixture
def robot(channel: grpc.Channel) -> Robot:
    return opened(channel)


# ---- budgets


def test_an_observation_whose_budget_is_over_is_not_computed(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.observe(2, budget_ms=0.001)
    robot.say(heartbeat=wire.Heartbeat())
    robot.hear("heartbeat")
    held.end()
    robot.hear("chunk")
    robot.hear_event(Kind.KIND_DROPPED_LATE, 2)
    assert len(runtime.seen(Submit)) == 1


@pytest.mark.parametrize(
    ("opening", "fields", "budget_ms"),
    [
        ({"budget_ms": None}, {}, 1e3 * HORIZON / 20.0),
        ({"budget_ms": 700.0}, {}, 700.0),
        ({"budget_ms": 700.0}, {"budget_ms": 50.0}, 50.0),
    ],
)
def test_the_budget_is_the_deadline_of_the_request(
    opening: dict[str, Any], fields: dict[str, Any], budget_ms: float
) -> None:
    with policy_runtime(clock=ManualClock(5)) as runtime, grpc.insecure_channel(runtime.address) as channel:
        robot = opened(channel, **opening)
        robot.observe(1, **fields)
        robot.hear("chunk")
        robot.observe(2, budget_ms=-1.0)
        assert "budget_ms is -1.0" in robot.hear_event(Kind.KIND_FAILED, 2).detail.message
        robot.close()
        (submit,) = runtime.seen(Submit)
    assert submit.deadline_ns == 5 + int(budget_ms * 1e6)


def test_a_chunk_after_the_budget_is_sent_and_told() -> None:
    clock = ManualClock()
    with policy_runtime(clock=clock) as runtime, grpc.insecure_channel(runtime.address) as channel:
        robot, held = opened(channel), Held(runtime)
        robot.observe(1, budget_ms=50.0)
        held.wait()
        clock.advance_ns(51_000_000)
        held.end()
        assert robot.hear("chunk").timing.total_us == 51_000
        robot.hear_event(Kind.KIND_LATE, 1)
        robot.close()


def test_the_runtime_says_that_an_observation_is_too_late(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    held.end(lambda job: job.fail("DEADLINE_EXCEEDED", "too late"))
    robot.hear_event(Kind.KIND_DROPPED_LATE, 1)
    robot.observe(2)
    held.wait(2)
    held.end()
    robot.hear("chunk")


# ---- what fails


def test_a_model_that_fails_is_told_and_the_session_goes_on(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    held.end(lambda job: job.fail("INTERNAL", "node 'act' failed on request r-1; the log has why"))
    event = robot.hear_event(Kind.KIND_FAILED, 1)
    assert (event.detail.code, event.detail.message) == (
        "INTERNAL",
        "node 'act' failed on request r-1; the log has why",
    )
    assert event.detail.request_id.startswith("r-")
    robot.observe(2)
    held.wait(2)
    held.end()
    robot.hear("chunk")


def test_actions_that_are_not_finite_are_not_sent(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    held.end(lambda job: answer(job, np.full((HORIZON, 2), np.nan, np.float32)))
    assert "not finite" in robot.hear_event(Kind.KIND_FAILED, 1).detail.message


def test_a_lost_worker_is_recovered_from(runtime: ToyRuntime, robot: Robot) -> None:
    """The observation is run again once the model serves; a newer one takes its place."""
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    runtime.set_serving(False, "worker/0 was lost")
    held.end(lambda job: job.fail("UNAVAILABLE", "worker/0 was lost"))
    event = robot.hear_event(Kind.KIND_RECOVERING, 1)
    assert (event.detail.code, event.detail.retryable) == ("UNAVAILABLE", True)
    robot.observe(2, 2)
    assert robot.hear_event(Kind.KIND_DROPPED_STALE, 1).replaced_by == 2
    runtime.set_serving(True)
    held.wait(2)
    held.end()
    assert robot.hear("chunk").answers_seq == 2


def test_an_observation_is_too_late_before_the_worker_is_back() -> None:
    clock = ManualClock()
    with policy_runtime(clock=clock) as runtime, grpc.insecure_channel(runtime.address) as channel:
        robot, held = opened(channel), Held(runtime)
        robot.observe(1, budget_ms=1000.0)
        held.wait()
        runtime.set_serving(False, "worker/0 was lost")
        clock.advance_ns(999_000_000)
        held.end(lambda job: job.fail("UNAVAILABLE", "worker/0 was lost"))
        robot.hear_event(Kind.KIND_RECOVERING, 1)
        clock.advance_ns(2_000_000)
        robot.hear_event(Kind.KIND_DROPPED_LATE, 1)
        robot.observe(2)
        runtime.set_serving(True)
        held.wait(2)
        held.end()
        assert robot.hear("chunk").answers_seq == 2
        robot.close()


def test_close_ends_the_wait_for_a_worker(runtime: ToyRuntime, robot: Robot) -> None:
    """Its budget is a minute."""
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    runtime.set_serving(False, "worker/0 was lost")
    held.end(lambda job: job.fail("UNAVAILABLE", "worker/0 was lost"))
    robot.hear_event(Kind.KIND_RECOVERING, 1)
    robot.close()


# ---- the server's end


def test_a_server_that_drains_sends_its_robots_away(runtime: ToyRuntime, robot: Robot) -> None:
    """The chunk that runs is answered, the next observation ends the stream."""
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    runtime.run(runtime.dispatcher.drain())
    held.end()
    assert robot.hear("chunk").answers_seq == 1
    robot.observe(2)
    failure = robot.ends_with()
    assert failure.code() == grpc.StatusCode.UNAVAILABLE
    assert "draining" in failure.details()
    assert dict(failure.trailing_metadata())["retry-after-ms"] == "5000"


def test_an_idle_robot_hears_of_the_servers_end(runtime: ToyRuntime, robot: Robot) -> None:
    async def end() -> None:
        runtime.dispatcher.close()

    runtime.run(end())
    failure = robot.ends_with()
    assert failure.code() == grpc.StatusCode.UNAVAILABLE
    assert "has ended this session" in failure.details()
