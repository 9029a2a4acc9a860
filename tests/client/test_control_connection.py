"""A control session whose server fails, is silent, or is connected to again."""

from __future__ import annotations

import numpy as np
from control_bench import Bench
from fake_policy_server import numbers, policy_schema, rows

from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.liveness import Backoff, Heartbeats
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition, Internal, ResourceExhausted, Unavailable
from mstar_rt.protos import control_pb2


def test_hold_then_stop_when_the_model_fails_for_good() -> None:
    bench = Bench(max_action_age_s=0.6, hold=np.zeros(2, np.float32)).started()
    kinds = []
    for seq in range(2, 20):
        action = bench.tick()
        kinds.append(action.kind)
        bench.event("failed", seq, detail="out of order")
    assert kinds == ["chunk"] * 8 + ["hold"] * 4 + ["stop"] * 6
    assert action.action.tolist() == [0, 0]  # type: ignore[union-attr]
    assert "is 0.900 s old: out of order" in action.reason
    assert isinstance(bench.state.problem, Internal)
    assert bench.state.record.snapshot().stop_ticks == 6


def test_old_replies_never_count_after_a_reconnection() -> None:
    bench = Bench(chunking="guided", epoch=5).started(2)
    assert bench.state.lost(Unavailable("gone")) == 0.1
    assert bench.tick().action.tolist() == [2, 2]  # type: ignore[union-attr]
    assert bench.sent() == [], "nothing is made while there is no connection"
    again = bench.connect()
    assert (again.epoch, again.takes_over) == (6, "s")
    assert bench.tick().action.tolist() == [3, 3]  # type: ignore[union-attr]
    seen = bench.observation()
    assert (seen.epoch, seen.seq, seen.executed_index) == (6, 3, -1)
    assert numbers(seen.previous_actions) == rows(3, 5).tolist()
    bench.answer(2, rows(100), epoch=5)
    bench.answer(2, rows(100))
    assert bench.tick().action.tolist() == [4, 4]  # type: ignore[union-attr]
    bench.answer(3, rows(30))
    action = bench.tick()
    assert (action.action.tolist(), action.index) == ([32, 32], 2)  # type: ignore[union-attr]
    assert bench.state.record.chunks == {"used": 2, "epoch": 1, "older": 1}


def test_ticks_of_a_new_connection_begin_with_its_first_observation_that_is_answered() -> None:
    """The server takes the first observation's tick for 0, whatever the robot has executed before."""
    bench = Bench(replan_every=1).started(1)
    bench.state.lost(Unavailable("gone"))
    bench.connect()
    for _ in range(2):
        bench.tick()
    assert len(bench.sent()) == 1, "the server counts from the one that is on its way"
    bench.event("failed", bench.state._last_seq)
    bench.tick()
    again = bench.observation()
    bench.answer(again.seq, rows(50))
    assert bench.tick().index == 1
    assert bench.observation().executed_index == 0


def test_without_chunking_of_the_model_nothing_is_said_of_the_last_connection() -> None:
    bench = Bench(chunking="temporal_ensemble").started(1)
    bench.state.lost(Unavailable("gone"))
    bench.connect()
    bench.tick()
    assert not bench.observation().HasField("previous_actions")


def test_what_was_asked_for_while_there_was_no_connection_is_in_the_opening() -> None:
    bench = Bench(seed=1).started(1)
    bench.state.lost(Unavailable("gone"))
    bench.state.set_instruction("pull")
    opening = bench.connect()
    assert (opening.epoch, opening.instruction, opening.seed) == (1, "pull", 1)
    bench.state.lost(Unavailable("gone"))
    bench.state.reset("touch", seed=9)
    opening = bench.connect()
    assert (opening.epoch, opening.instruction, opening.seed) == (3, "touch", 9)
    assert bench.tick().kind == "hold", "nothing of the last episode"
    assert len(bench.sent()) == 1


def test_what_is_asked_for_while_it_connects_is_sent_afterwards() -> None:
    bench = Bench().started(1)
    bench.state.lost(Unavailable("gone"))
    bench.state.connecting()
    bench.state.set_instruction("pull")
    bench.state.received(control_pb2.ControlResponse(opened=control_pb2.ControlOpened(session_id="s")))
    assert bench.sent()[0].instruction == "pull"


def test_some_errors_are_for_good() -> None:
    bench = Bench()
    assert bench.state.lost(ResourceExhausted("full")) is not None
    assert bench.state.lost(FailedPrecondition("another policy now")) is None
    assert isinstance(bench.state.fault, FailedPrecondition)


def test_a_session_that_never_opened_does_not_try_again() -> None:
    clock = ManualClock()
    settings = ControlSettings(model="toy", control_hz=20.0, instruction="push")
    state = ControlState(settings, policy_info(policy_schema()), clock)
    state.connecting()
    assert state.pulse() is None
    clock.advance_ns(int(30.1e9))
    error = state.pulse()
    assert "has not opened the session within 30 s" in str(error)
    assert state.lost(error) is None  # type: ignore[arg-type]


def test_heartbeats_go_out_and_silence_is_noticed() -> None:
    bench = Bench(heartbeat_timeout_s=2.0)
    quarter_ns = int(bench.state.interval_s * 1e9)
    for number in (1, 2, 3):
        assert bench.state.pulse() is None
        bench.clock.advance_ns(quarter_ns)
        assert bench.state.pulse() is None
        assert bench.sent()[-1].number == number
    bench.event("late")
    for _ in range(4):
        bench.clock.advance_ns(quarter_ns)
        assert bench.state.pulse() is None, "an event was a sign of life"
    bench.clock.advance_ns(quarter_ns)
    assert bench.state.pulse() is None
    bench.clock.advance_ns(1)
    assert str(bench.state.pulse()) == "the server has not answered for 2 s"


def test_heartbeats_are_only_sent_when_due() -> None:
    heartbeats = Heartbeats(2.0, now_ns=0)
    assert [heartbeats.due(ns) for ns in (0, 499_999_999, 500_000_000, 500_000_001, 10**9)] == [None, None, 1, None, 2]


def test_who_was_not_run_for_long_asks_again_before_it_calls_the_server_silent() -> None:
    heartbeats = Heartbeats(2.0, now_ns=0)
    second_ns = 10**9
    assert heartbeats.due(second_ns) == 1
    silent = []
    for now_s in (10.0, 10.5, 11.0, 11.5):
        silent.append(heartbeats.is_silent(int(now_s * second_ns)))
        heartbeats.due(int(now_s * second_ns))
    assert silent == [False, False, False, True]
    heartbeats.heard()
    assert not heartbeats.is_silent(12 * second_ns)


def test_attempts_are_further_and_further_apart() -> None:
    backoff = Backoff()
    assert [backoff.next_s() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    backoff.succeeded()
    assert backoff.next_s() == 0.1
