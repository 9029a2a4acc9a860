"""More robots than there would be time for one after another are let in where they share steps, and all in time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "worker")]

from admission_rig import MS, AdmissionRig
from simulation import MS as MS_NS
from simulation import Load, Simulation, Stage

from mstar_rt.conductor.admission_rates import KEPT_NS
from mstar_rt.conductor.admission_sharing import MESSAGES_S, Crowd
from mstar_rt.message import RequestFailed

BOUND = 0.8
LOWER_SHARE = 0.05
JITTER = 0.2


def crowd(num: int, cost_ms: Callable[[int], float], other_step_ms: float = 0.0, period_ms: float = 50.0) -> Crowd:
    """One more of `num` robots of that period wants to come."""
    return Crowd(
        0, num, lambda n: cost_ms(n) / 1e3, (num - 1) * 1e3 / period_ms, period_ms / 1e3, other_step_ms / 1e3, LOWER_SHARE
    )  # fmt: skip


def test_an_observation_waits_for_those_that_run_and_for_its_own_batch() -> None:
    four = crowd(4, lambda num: 8.0 + 2.0 * num, other_step_ms=5.0)
    longest_ms = (8 + 2 * 1) + (8 + 2 * 3)
    assert four.wait_s == pytest.approx(longest_ms / 1e3 / 0.95 + 0.005 + 4 * MESSAGES_S)
    assert crowd(1, lambda num: 10.0).wait_s == pytest.approx(0.01 / 0.95 + MESSAGES_S)


def test_the_rate_that_fits_is_bounded_by_the_time_needed_and_by_what_is_waited() -> None:
    cheap, dear = crowd(4, lambda num: 2.0 + num), crowd(4, lambda num: 20.0 + num)
    assert cheap.fitting_hz(0.1, None) == pytest.approx(0.1 / 0.0015 - 60)
    assert cheap.fitting_hz(0.95, None) == pytest.approx(0.8 / cheap.wait_s), "its own period, and a margin"
    assert cheap.fitting_hz(0.5, cheap.wait_s / 0.81) == 0.0, "its deadline"
    assert dear.fitting_hz(0.95, None) == 0.0, "the deadlines of those that are there"
    assert crowd(2, lambda num: 0.0).fitting_hz(0.5, None) == pytest.approx(0.8 / (2 * MESSAGES_S))


stages = st.lists(
    st.tuples(st.floats(0.3, 12.0), st.sampled_from([0.02, 0.1, 0.3, 0.6, 1.0])), min_size=1, max_size=6
)  # milliseconds alone, and the part of it that each further one adds


@settings(max_examples=25, deadline=None)
@example([(4.0, 0.02), (1.0, 0.1), (5.0, 0.1), (0.9921875, 0.02), (1.0, 0.02), (5.0, 0.02)], 100, 2.0, "spread", 1.0)
@given(
    stages,
    st.sampled_from([25, 50, 100]),
    st.sampled_from([0.0, 2.0, 7.0]),
    st.sampled_from(["together", "spread", "nearly together"]),
    st.sampled_from([1.0, 4.0]),
)
def test_whoever_is_let_in_is_served_in_time_by_the_simulated_worker(
    listed: list[tuple[float, float]], period_ms: int, painted_ms: float, phases: str, warm_up_factor: float
) -> None:
    """As many as are let in, beside a painter that never pauses; whatever the phases, and however slow the warm-up."""
    nodes = tuple(
        Stage(f"n{index}", int(alone * MS_NS), int(alone * each * MS_NS)) for index, (alone, each) in enumerate(listed)
    )

    def cost_ms(num: int) -> float:
        return sum(stage.step_ns(num) for stage in nodes) / MS_NS * (1 + JITTER)

    num = 0
    while num < 16 and crowd(num + 1, cost_ms, painted_ms * (1 + JITTER), period_ms).fitting_hz(BOUND, None) >= (
        1e3 / period_ms
    ):
        num += 1
    period_ns = period_ms * MS_NS
    between_ns = {"together": 0, "spread": period_ns // max(1, num), "nearly together": MS_NS // 2}[phases]
    loads = [Load(f"r{i}", "control", nodes, period_ns, period_ns, i * between_ns, "policy") for i in range(num)]
    if painted_ms:
        loads.append(Load("painter", "generation", (Stage("paint", int(painted_ms * MS_NS), 0),) * 9, model="painter"))
    simulation = Simulation("deadline", loads, jitter=JITTER, share=LOWER_SHARE, warm_up_factor=warm_up_factor)
    simulation.run(25 * period_ns)
    scores = [simulation.scores[f"r{i}"] for i in range(num)]
    assert all(len(score.latencies_ns) >= 24 and not score.num_late + score.num_dropped for score in scores)


# ---- in the conductor


def sharing(**options: object) -> AdmissionRig:
    """Ticks of 12 ms, of which each further one in a step adds a fourth."""
    rig = AdmissionRig(max_step_ms=2.0, **options)  # type: ignore[arg-type]
    rig.warm_up()
    for num in (2, 4, 8):
        for _ in range(4):
            shared(rig, num)
    return rig


def shared(rig: AdmissionRig, num: int, factor: float = 1.0) -> None:
    """A tick that shared its steps with others."""
    share = (0.75 + 0.25 * num) / num * factor
    rig.clock.advance_ns(250_000_000)
    rig.run("act", {node: each * share for node, each in MS.items()}, batch=num)


def opened(rig: AdmissionRig, rate_hz: float, most: int = 20, **params: object) -> list[str]:
    """As many as are let in."""
    sessions: list[str] = []
    while len(sessions) < most and isinstance(answer := rig.open(rate_hz, **params), str):
        sessions.append(answer)
    return sessions


def test_robots_that_share_steps_are_let_in_beyond_what_there_is_time_for_one_by_one() -> None:
    rig = sharing()
    assert len(opened(rig, 16.0)) == 5, "one by one there is time for four"
    assert rig.used() == pytest.approx(0.42), "what one of four takes, five times"
    answer = rig.open(16.0)
    assert isinstance(answer, RequestFailed)
    assert (
        "at most 80.0% may be used, unless they share steps: then 6 robots need 50.4%, and wait up to" in answer.message
    )
    assert "ms, at most 80% of the 62.5 ms in which chunks are due; no rate would fit now" in answer.message


def test_where_nobody_ever_shared_a_step_each_counts_as_alone() -> None:
    rig = AdmissionRig(max_step_ms=2.0)
    rig.warm_up()
    assert len(opened(rig, 20.0)) == 3


def test_where_the_steps_of_others_have_no_bound_or_their_order_no_deadlines_each_counts_as_alone() -> None:
    for options in ({"max_step_ms": None}, {"scheduling": "fcfs"}):
        rig = AdmissionRig(**{"max_step_ms": 2.0, **options})  # type: ignore[arg-type]
        rig.warm_up()
        for _ in range(8):
            shared(rig, 4)
        assert len(opened(rig, 20.0)) == 3


def test_robots_that_do_not_do_the_same_count_as_alone() -> None:
    rig = sharing()
    assert len(opened(rig, 20.0, most=3)) == 3
    assert isinstance(rig.open(10.0, num_denoise_steps=5), str), "there is time for it after the others"
    answer = rig.open(20.0)
    assert isinstance(answer, RequestFailed)
    assert "unless" not in answer.message


def test_a_deadline_that_is_shorter_than_the_period_counts() -> None:
    rig = sharing()
    assert len(opened(rig, 5.0, most=13)) == 13, "there is time for 13 of 12 ms in 200 ms"
    assert isinstance(rig.open(5.0), str), "and for one more, within 200 ms"
    assert isinstance(rig.open(5.0, deadline_s=0.05), RequestFailed)


def test_a_place_that_was_left_is_there_for_a_while_though_costs_have_risen() -> None:
    rig = sharing()
    sessions = opened(rig, 20.0)
    for _ in range(16):
        for num in (1, 2, 4, 8):
            shared(rig, num, 1.5)
    assert rig.used() > 0.6
    for _ in range(2):
        rig.close(sessions.pop())
    assert isinstance(rig.open(20.0), str)
    assert isinstance(rig.open(21.0), RequestFailed), "it asks for more"
    assert isinstance(rig.open(20.0), str)
    assert isinstance(rig.open(20.0), RequestFailed), "there were two places"
    rig.close(sessions.pop())
    rig.clock.advance_ns(KEPT_NS)
    assert isinstance(rig.open(20.0), RequestFailed)


def test_who_comes_newly_takes_the_places_that_were_left() -> None:
    rig = AdmissionRig()
    rig.warm_up()
    first = rig.open(60.0)
    assert isinstance(first, str)
    rig.close(first)
    assert isinstance(rig.open(30.0, num_denoise_steps=9), str)
    assert isinstance(rig.open(60.0), RequestFailed), "its place is taken"
