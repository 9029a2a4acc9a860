"""Control sessions are let in as long as measured cost times rate fits on every rank that they use."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admission_rig import MS, REPLICAS, AdmissionRig

from mstar_rt.message import RequestFailed


def warm(**options: object) -> AdmissionRig:
    rig = AdmissionRig(**options)  # type: ignore[arg-type]
    rig.warm_up()
    return rig


def refused(answer: str | RequestFailed) -> RequestFailed:
    assert isinstance(answer, RequestFailed), answer
    assert answer.code == "RESOURCE_EXHAUSTED"
    return answer


def test_sessions_are_admitted_until_the_rank_is_full_and_told_why_not() -> None:
    rig = warm()  # 12 ms a tick
    assert isinstance(rig.open(20.0), str)
    assert isinstance(rig.open(40.0), str)
    assert rig.used() == pytest.approx(0.72)
    answer = refused(rig.open(20.0))
    assert answer.message == (
        "model 'm' cannot serve a robot 20 chunks per second (control_hz / replan_every) on time: control sessions use "
        "72.0% of rank 0, this one would add 24.0% (12 ms x 20 per second), at most 80.0% may be used; 6.66 chunks per "
        "second would fit: replan less often, or try again when a session has ended"
    )
    assert isinstance(rig.open(6.66), str)
    assert "no rate would fit now" in refused(rig.open(5.0)).message
    stats = rig.conductor.stats()
    assert (stats["refused/utilisation"], stats["control_sessions"]) == (2, 3)


def test_who_gives_less_than_half_of_what_a_chunk_takes_is_told_so() -> None:
    rig = warm()  # 12 ms a tick
    assert refused(rig.open(5.0, deadline_s=0.0059)).message == (
        "model 'm' takes 12 ms for a chunk where nothing else runs, so none would come within budget_ms 5.9: give it more "
        "time, or options that cost less"
    )
    assert isinstance(rig.open(5.0, deadline_s=0.0061), str)
    assert isinstance(rig.open(5.0, deadline_s=0.004, num_denoise_steps=5), str)


def test_what_closes_makes_room_and_closes_once() -> None:
    rig = warm()
    first = rig.open(60.0)
    refused(rig.open(60.0))
    assert isinstance(first, str)
    rig.close(first)
    rig.close(first)
    assert rig.used() == 0
    assert isinstance(rig.open(60.0), str)


def test_a_cold_run_does_not_count() -> None:
    rig = warm()
    assert isinstance(rig.open(66.0), str), "the cold run took 50 times as long"


def test_before_anything_was_measured_sessions_are_let_in_and_count_once_they_run() -> None:
    rig = AdmissionRig()
    rig.warm_up(num=0)
    session = rig.open(50.0)
    assert isinstance(session, str)
    assert rig.used() == 0
    rig.tick(session)
    assert rig.used() == pytest.approx(0.6)
    refused(rig.open(50.0))


def test_a_session_with_more_steps_costs_more_before_it_ever_ran() -> None:
    rig = warm()
    assert "(22 ms x 40 per second)" in refused(rig.open(40.0, num_denoise_steps=20)).message
    assert isinstance(rig.open(40.0, num_denoise_steps=5), str)
    assert rig.used() == pytest.approx(0.28)


def test_steps_that_were_left_out_are_counted_as_asked_for() -> None:
    """An anytime policy under load must not look cheap, or more would be let in."""
    rig = warm()
    session = rig.open(20.0)
    assert isinstance(session, str)
    for _ in range(20):
        rig.tick(session, params={"num_denoise_steps": 2})
    assert rig.used() == pytest.approx(0.24)


def test_options_that_have_hardly_run_cost_what_the_defaults_do_then_what_was_measured() -> None:
    rig = warm()
    session = rig.open(20.0, chunking="guided")
    assert isinstance(session, str)
    assert rig.used() == pytest.approx(0.24)
    for _ in range(3):
        rig.tick(session, {**MS, "denoise": 3.0})
        assert rig.used() == pytest.approx(0.64), "from the first one on"
    assert "(12 ms" in refused(rig.open(20.0)).message, "others cost what they did"
    assert "(32 ms" in refused(rig.open(20.0, chunking="guided", instruction="push")).message


def test_who_has_shared_steps_may_run_alone_soon() -> None:
    rig = warm()
    session = rig.open(20.0)
    assert isinstance(session, str)
    for _ in range(64):
        rig.tick(session, {node: each / 4 for node, each in MS.items()}, batch=4)
    assert rig.used() == pytest.approx(0.24)


def test_one_disturbed_measurement_does_not_count() -> None:
    rig = warm()
    session = rig.open(20.0)
    assert isinstance(session, str)
    for index in range(60):
        rig.tick(session, {node: each * (100 if index % 20 == 0 else 1) for node, each in MS.items()})
    assert rig.used() == pytest.approx(0.24)


def test_replicas_share_the_work_and_one_that_is_away_leaves_it_to_the_other() -> None:
    """Rank 0 sees (2 ms), ranks 1 and 2 denoise (10 ms)."""
    rig = warm(rules=REPLICAS)
    sessions = [rig.open(50.0), rig.open(50.0)]
    assert all(isinstance(session, str) for session in sessions)
    assert [rig.used(rank) for rank in range(3)] == pytest.approx([0.2, 0.5, 0.5])
    rig.lose(2)
    assert [rig.used(rank) for rank in range(3)] == pytest.approx([0.2, 1.0, 0.0]), "reservations stay"
    assert "rank 1, this one" in refused(rig.open(1.0)).message
    rig.come(2)
    rig.warm_up()
    assert [rig.used(rank) for rank in range(3)] == pytest.approx([0.2, 0.5, 0.5])
    assert isinstance(rig.open(50.0), str)


def test_without_a_bound_nobody_is_refused() -> None:
    rig = warm(utilisation_bound=None)
    assert all(isinstance(rig.open(100.0), str) for _ in range(5))
    assert rig.used() == pytest.approx(6.0)


def test_class_control_is_for_sessions_that_were_admitted() -> None:
    rig = warm()
    for client in ("", "s1"):
        answer = rig.submit("act", criticality="control", client=client)
        assert isinstance(answer, RequestFailed)
        assert answer.code == "FAILED_PRECONDITION"
    session = rig.open(20.0)
    assert isinstance(session, str)
    rig.tick(session)
    rig.close(session)
    assert isinstance(rig.submit("act", criticality="control", client=session), RequestFailed)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.floats(0.1, 100.0), st.integers(1, 30)),
            st.tuples(st.just("close"), st.integers(0, 50), st.just(0)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_the_sum_never_exceeds_the_bound_and_the_rate_that_is_named_fits(
    actions: list[tuple[str, float, int]], replicated: bool
) -> None:
    rig = warm(rules=REPLICAS) if replicated else warm()
    costs_s = {0: 0.002, 1: 0.0005, 2: 0.0005} if replicated else {0: 0.002}
    held: dict[str, dict[int, float]] = {}
    for action, number, steps in actions:
        if action == "close":
            if held:
                session = sorted(held)[int(number) % len(held)]
                rig.close(session)
                del held[session]
            continue
        per_hz = {rank: (0.002 if rank == 0 else 0) for rank in costs_s}
        for rank in (1, 2) if replicated else (0,):
            per_hz[rank] += 0.001 * steps / (2 if replicated else 1)
        fits = min((0.8 - sum(each[rank] for each in held.values())) / per_hz[rank] for rank in costs_s)
        answer = rig.open(number, num_denoise_steps=steps)
        if isinstance(answer, str):
            assert number <= fits * (1 + 1e-6)
        else:
            assert number >= fits * (1 - 1e-6)
            named = re.search(r"; ([0-9.e+-]+) chunks per second would fit", answer.message)
            if named is None:
                assert fits < 0.011
                continue
            number = float(named.group(1))
            assert 0.98 * fits <= number <= fits * (1 + 1e-6)
            answer = rig.open(number, num_denoise_steps=steps)
            assert isinstance(answer, str), "what is said to fit fits"
        held[answer] = {rank: each * number for rank, each in per_hz.items()}
        for rank in costs_s:
            assert rig.used(rank) == pytest.approx(sum(each[rank] for each in held.values()), abs=1e-9)
            assert rig.used(rank) <= 0.8 + 1e-6


def test_a_client_that_has_a_name_takes_no_place_of_another_ones() -> None:
    """Whoever may look at the sessions knows their names. An address tells nobody from others: it changes."""
    rig = warm()
    lost = rig.open(60.0, client="arm-1")
    assert isinstance(lost, str)
    refused(rig.open(60.0, client="arm-2", takes_over=lost))
    refused(rig.open(60.0, client="ipv4:10.0.0.9:5", takes_over=lost))
    assert not isinstance(rig.submit("act", criticality="control", client=lost), RequestFailed), "it has its place"
    back = rig.open(60.0, client="arm-1", takes_over=lost)
    assert isinstance(back, str)
    rig.close(back)
    rig.close(lost)
    lost = rig.open(60.0, client="ipv4:10.0.0.9:5")
    assert isinstance(lost, str)
    assert isinstance(rig.open(60.0, client="ipv4:10.0.0.9:6", takes_over=lost), str)


def test_a_robot_that_comes_back_gets_its_own_place() -> None:
    """The server may not have noticed yet that its last connection is gone."""
    rig = warm()
    lost = rig.open(60.0)
    assert isinstance(lost, str)
    refused(rig.open(60.0))
    refused(rig.open(60.0, takes_over="s-of-nobody"))
    back = rig.open(60.0, takes_over=lost)
    assert isinstance(back, str)
    assert rig.used() == pytest.approx(0.72)
    assert isinstance(rig.submit("act", criticality="control", client=lost), RequestFailed), "it was taken over"
    rig.close(lost)
    assert rig.used() == pytest.approx(0.72)
    for _ in range(20):
        rig.tick(back, {**MS, "denoise": 2.0})
    assert rig.used() == pytest.approx(1.32), "it costs more than was known"
    back = rig.open(60.0, takes_over=back)
    assert isinstance(back, str), "who was let in stays in"
    refused(rig.open(61.0, takes_over=back))
    assert rig.used() == pytest.approx(1.32), "whoever asks for more and is refused keeps what there was"
    assert isinstance(rig.open(30.0, takes_over=back), str)
    assert rig.used() == pytest.approx(0.66)


def test_what_was_measured_long_ago_does_not_count() -> None:
    """The machine was busy when it started; nobody was let in, so nothing ran, until it was measured again."""
    rig = AdmissionRig()
    rig.warm_up({node: each * 100 for node, each in MS.items()})
    refused(rig.open(20.0))
    rig.clock.advance_ns(31_000_000_000)
    refused(rig.open(20.0))
    for _ in range(3):
        rig.run("act", MS)
    assert isinstance(rig.open(20.0), str)
