"""Figures of a session: rates over what is known, quantiles of the newest answers."""

from __future__ import annotations

import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.server.metrics_sessions import WINDOW, SessionMeters

MS = 1_000_000


def test_rate_and_quantiles_of_a_steady_session() -> None:
    clock = ManualClock(10**9)
    meters = SessionMeters(clock)
    meter = meters.open("s1", "control", "toy", "ipv4:1", asked_hz=20.0, budget_ms=50.0)
    (before,) = meters.infos()
    assert (before.num_answered, before.answered_hz, before.HasField("p50_ms")) == (0, 0.0, False)
    for number in range(100):  # 5 s at 20 Hz, latencies of 1 to 100 ms
        clock.advance_ns(50 * MS)
        meter.answered(clock.now_ns(), (number + 1) * MS, missed=number >= 98)
    (info,) = meters.infos()
    assert (info.num_answered, info.num_missed) == (100, 2)
    assert info.answered_hz == pytest.approx(20.0, rel=0.02)
    assert (info.p50_ms, info.p99_ms) == (50.0, 99.0)
    clock.advance_ns(20_000 * MS)
    (later,) = meters.infos()
    assert (later.answered_hz, later.p50_ms, later.num_answered) == (0.0, 50.0, 100)


def test_a_fast_session_has_its_rate_from_the_answers_that_are_kept() -> None:
    clock = ManualClock()
    meters = SessionMeters(clock)
    meter = meters.open("s1", "control", "toy", "")
    for _ in range(3 * WINDOW):
        clock.advance_ns(MS)
        meter.answered(clock.now_ns(), MS)
    (info,) = meters.infos()
    assert info.answered_hz == pytest.approx(1000.0, rel=0.01)


def test_sessions_are_listed_as_they_were_opened_until_they_close() -> None:
    meters = SessionMeters(ManualClock())
    first, second = meters.open("b", "tasks", "toy", ""), meters.open("a", "control", "toy", "")
    assert [info.session_id for info in meters.infos()] == ["b", "a"]
    meters.close(first)
    meters.close(first)
    assert [info.session_id for info in meters.infos()] == ["a"]
    assert second.session_id == "a"
