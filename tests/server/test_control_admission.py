"""A control session asks for its place before it opens, keeps to its rate, and gives its place back."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from control_stream import Held, Robot, opened, policy_runtime
from hypothesis import given
from hypothesis import strategies as st
from toy_runtime import ToyRuntime

from mstar_rt.message import CloseSession, OpenSession, Submit
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.control.pace import BURST, AdmittedPace


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


def test_a_session_states_its_rate_and_what_settles_its_cost(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    robot = Robot(channel, control_hz=50.0, replan_every=8, num_denoise_steps=7, takes_over="s-before",
                  chunking={"mode": wire.RealTimeChunking.MODE_GUIDED, "delay": 2})  # fmt: skip
    answer = robot.hear("opened")
    assert answer.admitted_hz == 6.25
    (asked,) = runtime.wait_for(OpenSession)
    assert (asked.session_id, asked.model, asked.criticality) == (answer.session_id, "toy", "control")
    assert (asked.task, asked.rate_hz, asked.takes_over) == ("act", 6.25, "s-before")
    assert asked.client.startswith("ipv")
    assert (asked.params["num_denoise_steps"], asked.params["chunking"]) == (7, "guided")
    robot.observe(1)
    robot.hear("chunk")
    submit = runtime.wait_for(Submit)[-1]
    assert (submit.client, submit.criticality, submit.session_id) == (answer.session_id, "control", None)
    robot.close()
    assert runtime.wait_for(CloseSession) == [CloseSession(answer.session_id)]


@pytest.mark.parametrize("how", ["vanishes", "breaks the protocol", "stops sending"])
def test_a_session_that_ends_otherwise_gives_its_place_back(
    runtime: ToyRuntime, channel: grpc.Channel, how: str
) -> None:
    robot = opened(channel)
    if how == "vanishes":
        robot.call.cancel()
    elif how == "stops sending":
        robot.stop_sending()
    else:
        robot.observe(2)
        robot.hear("chunk")
        robot.observe(1)
        assert robot.ends_with().code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(runtime.wait_for(CloseSession)) == 1


def test_before_a_robot_is_refused_its_task_is_measured_again(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    runtime.refuse_session = ("RESOURCE_EXHAUSTED", "rank 0 is full, 3 Hz would fit")
    for _ in range(2):
        error = Robot(channel, model_options={"hold_s": {"number": 0.25}}).ends_with()
        assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rank 0 is full, 3 Hz would fit")
    measured = runtime.seen(Submit)
    assert [submit.criticality for submit in measured] == ["planning"] * 15, "once in a while, not for every robot"
    for submit in measured:
        assert (submit.params["hold_s"], submit.is_cold, submit.client) == (0.25, False, "")
        assert {"image_top", "image_wrist", "state"} <= submit.inputs.keys()
    assert len(runtime.seen(OpenSession)) == 3, "the first robot is tried twice"
    runtime.refuse_session = None
    opened(channel).close()


def test_options_that_no_robot_has_chosen_yet_are_measured_before_one_is_let_in(
    runtime: ToyRuntime, channel: grpc.Channel
) -> None:
    guided = {"mode": wire.RealTimeChunking.MODE_GUIDED}
    runtime.refuse_session = ("UNAVAILABLE", "not now")
    Robot(channel, chunking=guided).ends_with()
    measured = runtime.seen(Submit)
    assert len(measured) == 15, "before the conductor was asked, whatever it says"
    assert all(submit.params["chunking"] == "guided" and "previous_actions" in submit.inputs for submit in measured)
    runtime.refuse_session = None
    opened(channel, chunking=guided).close()
    opened(channel).close()
    assert len(runtime.seen(Submit)) == 15, "once, and not the defaults, which ran in the warm-up"


def test_what_comes_faster_than_was_admitted_is_served_like_a_plan(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    robot = opened(channel, control_hz=0.01)
    flags = []
    for seq in range(BURST + 2):
        robot.observe(seq)
        flags.append(list(robot.hear("chunk").flags))
    assert flags == [["toy"]] * BURST + [["toy", "over_rate"]] * 2
    assert [submit.criticality for submit in runtime.seen(Submit)] == ["control"] * BURST + ["planning"] * 2
    robot.close()


def test_a_robot_that_tries_again_too_soon_hears_why_others_go_first(
    runtime: ToyRuntime, channel: grpc.Channel
) -> None:
    robot, held = opened(channel, control_hz=0.01), Held(runtime)
    details = []
    for seq in range(BURST + 1):
        robot.observe(seq)
        held.wait(seq + 1)
        held.end(lambda job: job.fail("DEADLINE_EXCEEDED", "too late"))
        details.append(robot.hear_event(wire.ControlEvent.KIND_DROPPED_LATE, seq).detail)
    assert [detail.code for detail in details] == [""] * BURST + ["RESOURCE_EXHAUSTED"]
    assert "sooner than the 0.01 chunks per second" in details[-1].message
    robot.close()


@given(
    st.floats(0.5, 1000.0),
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=80),
)
def test_no_span_of_time_has_more_than_the_rate_and_a_burst(rate_hz: float, gaps: list[float]) -> None:
    """`gaps` in periods."""
    pace, now_ns = AdmittedPace(rate_hz), 10**12
    taken: list[int] = []
    for gap in gaps:
        now_ns += int(gap * 1e9 / rate_hz)
        if pace.take(now_ns):
            taken.append(now_ns)
    for first, start_ns in enumerate(taken):
        for num, end_ns in enumerate(taken[first:], start=1):
            assert num <= (end_ns - start_ns) / 1e9 * rate_hz / 0.99 + (BURST - 1) / 0.99 + 1 + 1e-3
    if all(gap >= 0.995 for gap in gaps):
        assert len(taken) == len(gaps), "a robot that keeps to its rate is never over it"
