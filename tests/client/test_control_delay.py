"""The delay for which a control session has its chunks made."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from control_bench import PERIOD_NS, SEEN, Bench
from fake_policy_server import rows


def test_its_delay_is_what_the_last_chunks_took() -> None:
    bench = Bench(chunking="guided")
    bench.tick()
    assert not bench.observation().HasField("delay")
    bench.answer(1)
    bench.tick()
    assert bench.observation().delay == 1, "the robot held, but would have consumed one"
    for _ in range(2):
        bench.tick()
    bench.answer(2)
    bench.tick()
    third = bench.observation()
    assert (third.seq, third.delay) == (3, 3)
    for _ in range(2):
        bench.tick()
    bench.event("failed", 3)
    bench.tick()
    fourth = bench.observation()
    assert (fourth.delay, bench.state.queue.num_remaining) == (2, 1), "it had but two actions left to consume"


@pytest.mark.parametrize("settings", [{}, {"chunking": "temporal_ensemble"}, {"chunking": "guided", "delay": 2}])
def test_the_delay_is_not_said_where_nobody_asks(settings: dict[str, Any]) -> None:
    bench = Bench(**settings).started(2)
    bench.answer(2)
    bench.tick()
    assert not bench.observation().HasField("delay")


def test_recovering_is_left_out_of_the_delay() -> None:
    bench = Bench(chunking="prefix").started(1)
    bench.event("recovering", 2)
    for _ in range(4):
        bench.tick()
    bench.answer(2)
    bench.tick()
    assert bench.observation().delay == 1, "as the first chunk had it"


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"chunking": "guided"}, 7),
        ({"chunking": "prefix"}, 4),
        ({"chunking": "guided", "prefix_attention_horizon": 5}, 5),
    ],
)
def test_a_delay_that_the_policy_cannot_bridge_is_bridged_as_far_as_it_can(
    settings: dict[str, Any], longest: int
) -> None:
    """A seam is better than a robot that stands still, because its observations are refused."""
    bench = Bench(**settings).started(7)
    bench.answer(2, rows(0), delay_assumed=0)
    bench.tick()
    bench.sent()
    bench.answer(3, rows(8), delay_assumed=1)
    bench.tick()
    assert bench.state._delay.delay == 7
    assert bench.observation().delay == longest
    assert bench.state.record.snapshot().num_outrun == 1


def test_the_delay_reckons_with_the_chunk_that_comes_before() -> None:
    """The robot will have it by then, so it can consume more than what is left now."""
    bench = Bench(chunking="guided", replan_every=3).started(3)  # the second observation is on its way
    for _ in range(2):
        bench.tick()
    bench.answer(2, rows(3))
    delays = []
    for _ in range(4):
        bench.tick()
        delays += [(each.seq, each.delay, bench.state.queue.num_remaining + 1) for each in bench.sent()]
    assert bench.state.record.delays == deque([0, 3])
    assert delays == [(3, 3, 5), (4, 3, 2)]


@pytest.mark.parametrize("latency_s", [0.0, 0.1, 0.35, 0.7])
def test_a_slow_model_does_not_starve_a_robot_whose_chunks_are_long(latency_s: float) -> None:
    """50 actions a chunk at 30 Hz; one observation at a time is on its way, and is answered `latency_s` later."""
    bench = Bench(50, control_hz=30.0, chunking="guided")
    on_its_way: tuple[int, float, int] | None = None
    delays = []
    for tick in range(300):
        now_s = tick / 30
        if on_its_way is not None and now_s >= on_its_way[1]:
            bench.answer(on_its_way[0], rows(on_its_way[2], 50))
            on_its_way = None
        action = bench.state.act(SEEN)
        bench.clock.advance_ns(10**9 // 30)
        for observation in bench.sent():
            assert on_its_way is None
            executed = bench.state.queue.num_consumed - (action.kind == "chunk")
            on_its_way = observation.seq, now_s + latency_s, executed
            delays.append(observation.delay)
        if action.kind == "chunk":
            assert action.action.tolist()[0] == bench.state.queue.num_consumed - 1  # type: ignore[union-attr]
    stats = bench.state.record.snapshot()
    assert stats.starvation_ticks == 0
    assert stats.waiting_ticks <= 30 * latency_s + 1.5
    assert set(stats.seam_jumps) <= {0.0}
    assert min(stats.delays[1:]) <= delays[-1] <= max(stats.delays[1:]) <= 30 * latency_s + 1.5


def test_the_first_delay_counts_the_time_that_the_robot_stood_still() -> None:
    bench = Bench(chunking="guided")
    bench.state.send(SEEN)
    bench.sent()
    bench.clock.advance_ns(int(2.5 * PERIOD_NS))
    bench.answer(1)
    bench.tick()
    assert bench.observation().delay == 3
