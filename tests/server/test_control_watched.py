"""What a robot's ticks leave behind for whoever watches: figures of its session, counts, histograms, spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from control_stream import Held, Kind, Robot, opened, policy_runtime
from toy_runtime import ToyRuntime

from mstar_rt.client import Client, connect
from mstar_rt.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(10**9)


@pytest.fixture
def runtime(clock: ManualClock) -> Iterator[ToyRuntime]:
    with policy_runtime(clock=clock) as running:
        yield running


@pytest.fixture
def robot(channel: grpc.Channel) -> Robot:
    return opened(channel, replan_every=2, budget_ms=100.0)


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[Client]:
    with connect(runtime.address) as connected:
        yield connected


def answered_late(runtime: ToyRuntime, robot: Robot, clock: ManualClock, seq: int) -> None:
    held = Held(runtime)
    robot.observe(seq)
    held.wait(1)
    clock.advance_ns(150_000_000)
    held.end()
    robot.hear("chunk")
    robot.hear_event(Kind.KIND_LATE, seq)


def test_a_session_is_shown_with_its_rate_its_latencies_and_its_misses(
    runtime: ToyRuntime, robot: Robot, client: Client, clock: ManualClock
) -> None:
    missed: list[str] = []
    runtime.dispatcher.meters.on_missed = missed.append
    robot.observe(1)
    robot.hear("chunk")
    clock.advance_ns(100_000_000)
    answered_late(runtime, robot, clock, 2)
    (session,) = client.sessions()
    assert (session.kind, session.model, session.asked_hz, session.budget_ms) == ("control", "toy", 10.0, 100.0)
    assert session.client.startswith("ipv4:127.0.0.1:")
    assert (session.num_answered, session.num_missed, session.p99_ms) == (2, 1, 150.0)
    assert session.last is not None
    assert len(missed) == 1
    stats = client.stats()
    assert stats.processes["server"]["ticks_missed/toy/late"] == 1
    assert stats.processes["server"]["requests_ended/control/OK"] == 2
    assert stats.histograms["server"]["tick_us/toy"].num_values == 2
    assert stats.histograms["worker/0"]["queue_us/control"].counts == (1, 2, 0)
    robot.close()
    assert client.sessions() == []


def test_observations_that_have_no_chunk_count_by_why(
    runtime: ToyRuntime, robot: Robot, client: Client, clock: ManualClock
) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    clock.advance_ns(200_000_000)
    robot.observe(2)
    robot.observe(3, budget_ms=0.000001)
    robot.hear_event(Kind.KIND_DROPPED_STALE, 2)
    clock.advance_ns(1_000_000)
    held.end()
    robot.hear("chunk")
    robot.hear_event(Kind.KIND_LATE, 1)
    robot.hear_event(Kind.KIND_DROPPED_LATE, 3)
    (session,) = client.sessions()
    assert (session.num_answered, session.num_missed, session.dropped) == (1, 2, {"stale": 1, "late": 1})


def test_a_tick_is_traced_with_its_parts_and_those_of_its_worker(
    runtime: ToyRuntime, robot: Robot, client: Client, clock: ManualClock
) -> None:
    answered_late(runtime, robot, clock, 7)
    (session,) = client.sessions()
    trace = client.trace(last_s=10.0)
    spans = {span.name: span for span in trace.processes["server"] if span.track == f"robot {session.session_id}"}
    assert set(spans) == {"tick", "decode", "encode"}
    tick = spans["tick"]
    assert (tick.duration_ns, dict(tick.detail)) == (150_000_000, {"seq": 7, "missed": "late"})
    (request,) = [span for span in trace.processes["server"] if span.track == "requests, control"]
    assert (request.name, request.requests, dict(request.detail)) == ("toy.act", tick.requests, {"detail": "OK"})
    (step,) = trace.processes["worker/0"]
    assert (step.name, step.track, dict(step.detail)) == ("act", "control", {"model": "toy"})
    assert trace.silent == ()


def test_a_trace_names_who_did_not_answer(runtime: ToyRuntime, client: Client) -> None:
    runtime.answers_traces = False
    runtime.dispatcher._questions.timeout_s = 0.01
    trace: Any = client.trace()
    assert (list(trace.processes), trace.silent) == (["server"], ("worker/0",))
