"""Plans and generations: how many may wait, and who would begin too late."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admission_rig import MS, AdmissionRig

from mstar_rt.conductor.admission_queue import RequestQueues
from mstar_rt.config import PlacementRule
from mstar_rt.errors import ERRORS_BY_CODE, ResourceExhausted
from mstar_rt.message import CancelRequest, RequestFailed

MS_NS = 1_000_000
SLOW = {**MS, "see": 100.0}
"""A look costs 100 ms of rank 0."""


def warm(**options: Any) -> AdmissionRig:
    rig = AdmissionRig(**options)
    rig.warm_up(SLOW)
    return rig


def look(rig: AdmissionRig, within_ms: float | None = None, **fields: Any) -> Any:
    deadline_ns = None if within_ms is None else rig.clock.now_ns() + int(within_ms * MS_NS)
    return rig.submit("look", deadline_ns=deadline_ns, **fields)


def refused(answer: Any) -> RequestFailed:
    assert isinstance(answer, RequestFailed), answer
    assert answer.code == "RESOURCE_EXHAUSTED"
    return answer


def too_many(answer: Any) -> RequestFailed:
    assert isinstance(answer, RequestFailed), answer
    assert (answer.code, answer.retry_after_s) == ("DEADLINE_EXCEEDED", None)
    assert not ERRORS_BY_CODE[answer.code].retryable
    return answer


def test_a_full_queue_refuses_its_class_only() -> None:
    rig = warm(max_queued_planning=3, max_queued_generation=1)
    plans = [look(rig) for _ in range(3)]
    answer = refused(look(rig))
    assert answer.message == "3 planning requests have no answer yet, at most 3 may wait: try again later"
    assert answer.retry_after_s == pytest.approx(0.1), "when the first of them should be through"
    generation = look(rig, criticality="generation")
    assert "1 generation requests" in refused(look(rig, criticality="generation")).message
    rig.finish(plans[0], SLOW)
    assert not isinstance(look(rig), RequestFailed)
    rig.conductor.handle(CancelRequest(generation[0]))
    assert not isinstance(look(rig, criticality="generation"), RequestFailed)
    stats = rig.conductor.stats()
    assert (stats["queued/planning"], stats["queued/generation"], stats["refused/queue_full"]) == (3, 1, 2)


def test_what_would_begin_after_its_deadline_is_refused_with_the_numbers() -> None:
    rig = warm()
    first = look(rig, 150)
    look(rig, 150)
    answer = refused(look(rig, 180))
    assert answer.message == (
        "this planning request would begin in 0.2 s, after its deadline in 0.18 s: rank 0 has 0.2 s of work before it, "
        "and control sessions leave 100% of the rank; give it more time, or try again later"
    )
    assert answer.retry_after_s == pytest.approx(0.02)
    assert not isinstance(look(rig, 250), RequestFailed)
    rig.finish(first, SLOW)
    rig.clock.advance_ns(50 * MS_NS)
    assert not isinstance(look(rig, 180), RequestFailed), "part of what is before it is done"
    assert rig.conductor.stats()["refused/too_late"] == 1


def test_only_what_goes_before_counts() -> None:
    rig = warm()
    for _ in range(10):
        look(rig)
        look(rig, 5000)
        look(rig, criticality="generation")
    assert not isinstance(look(rig, 50), RequestFailed), "those are due later, or some day"
    assert refused(look(rig, 1500, criticality="generation")).message.startswith("this generation request")


def test_what_cannot_be_done_before_its_own_deadline_does_not_stand_in_the_way() -> None:
    rig = warm()
    for _ in range(20):
        look(rig, 1)
    assert not isinstance(look(rig, 50), RequestFailed), "they end within a millisecond, one way or the other"


def test_what_control_sessions_take_is_not_left_for_plans() -> None:
    rig = warm()
    for _ in range(3):
        assert not isinstance(look(rig, 250), RequestFailed)
    rig = warm()
    assert isinstance(rig.open(6.0), str)  # 110 ms a tick: 66 %
    for _ in range(2):
        assert not isinstance(look(rig, 250), RequestFailed)
    assert "leave 34% of the rank" in refused(look(rig, 250)).message


def shared(rig: AdmissionRig, num: int, step_ms: float) -> None:
    """A call of so many in one step has run."""
    looks = [look(rig, num_together=num) for _ in range(num)]
    for each in looks:
        rig.finish(each, {**MS, "see": step_ms / num}, batch=num)


def test_requests_of_one_call_count_as_a_batch_once_batches_were_measured() -> None:
    rig = warm()
    assert [isinstance(look(rig, 250, num_together=4), RequestFailed) for _ in range(4)] == [False] * 3 + [True], (
        "nobody knows yet that they share anything: one after the other"
    )
    rig = warm()
    shared(rig, 4, step_ms=160.0)
    assert not any(isinstance(look(rig, 130, num_together=4), RequestFailed) for _ in range(4))
    assert "would begin in 0.16 s" in refused(look(rig, 130)).message, "of another call, as it comes after all of them"


def test_a_call_that_is_too_large_for_its_own_deadline_is_not_told_to_try_again() -> None:
    rig = warm()
    answers = [look(rig, 250, num_together=4) for _ in range(4)]
    assert too_many(answers[3]).message == (
        "4 requests of one call take about 0.4 s with the 100% of rank 0 that control sessions leave, and 0.25 s are "
        "left until their deadline: ask for fewer at once, or give them more time"
    )
    assert rig.conductor.stats()["refused/too_late"] == 1
    rig = warm()
    look(rig, 150)
    assert not isinstance(look(rig, 150, num_together=2), RequestFailed)
    assert "would begin in 0.2 s" in refused(look(rig, 150, num_together=2)).message, "alone both would be in time"


def test_another_number_counts_as_what_more_of_them_took_at_most() -> None:
    rig = warm()
    shared(rig, 4, step_ms=150.0)
    for _ in range(2):
        look(rig, 90, num_together=3)
    assert "take about 0.15 s" in too_many(look(rig, 90, num_together=3)).message, "a step of three, at most"
    rig = warm()
    shared(rig, 4, step_ms=160.0)
    assert [isinstance(look(rig, 250, num_together=8), RequestFailed) for _ in range(8)] == [False] * 7 + [True]


@pytest.mark.parametrize("num", [6, 7])
def test_replicas_share_the_requests_of_a_call_out(num: int) -> None:
    rig = warm(rules=(PlacementRule("m"), PlacementRule("m", ("see",), (0, 1))))
    for replica in range(2):
        for _ in range(3):
            rig.run("look", {**MS, "see": 37.5}, batch=4, warmup_on=[replica])
    answers = [look(rig, 90, num_together=num) for _ in range(num)]
    assert [isinstance(answer, RequestFailed) for answer in answers] == [False] * 4 + [True] * (num - 4)
    assert f"{num} requests of one call take about 0.15 s" in too_many(answers[4]).message, "three on each at the least"


def test_limits_of_a_connection() -> None:
    rig = warm(max_requests_per_client=2, max_sessions_per_client=1)
    mine = [look(rig, client="ipv4:1") for _ in range(2)]
    assert "at most 2 may" in refused(look(rig, client="ipv4:1")).message
    assert not isinstance(look(rig, client="ipv4:2"), RequestFailed)
    rig.finish(mine[0], SLOW)
    assert not isinstance(look(rig, client="ipv4:1"), RequestFailed)
    for rate_hz in (0.0, 1.0):
        session = rig.open(rate_hz, client="ipv4:1")
        assert isinstance(session, str)
        assert "at most 1 may be" in refused(rig.open(0.0, client="ipv4:1")).message
        assert isinstance(rig.open(0.0, client=f"ipv4:2{rate_hz}"), str)
        rig.close(session)
        rig.close(session)
    assert rig.conductor.stats()["refused/client_limit"] == 3


def test_what_failed_is_forgotten() -> None:
    rig = warm(max_queued_planning=1)
    for _ in range(3):
        look(rig)
        rig.lose(0)
        rig.come(0)
        rig.warm_up(SLOW)
    assert rig.conductor.stats()["queued/planning"] == 0


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["planning", "generation"]),
        st.one_of(st.none(), st.integers(1, 3_000)),  # milliseconds until the deadline
        st.integers(0, 500),  # milliseconds that it costs
        st.integers(0, 400),  # until the next one comes
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.sampled_from([1.0, 0.5, 0.0]))
def test_nothing_is_refused_that_a_rank_would_begin_in_time(
    requests: list[tuple[str, int | None, int, int]], left: float
) -> None:
    """Against a rank that does what is due first in each class, the more critical class first, as fast as it may; it
    says when it is through with each."""
    queues = RequestQueues({"planning": 100, "generation": 100}, lambda rank: left)
    pace = max(left, 0.05)
    now_ns = 0
    todo: dict[tuple[bool, float, int], float] = {}
    for number, (kind, within_ms, cost_ms, gap_ms) in enumerate(requests):
        deadline_ns = None if within_ms is None else now_ns + within_ms * MS_NS
        key = (kind != "planning", float("inf") if deadline_ns is None else deadline_ns, number)
        cost_ns = {0: cost_ms * MS_NS}
        try:
            queues.check_start(kind, deadline_ns, cost_ns, now_ns)
        except ResourceExhausted:
            assert deadline_ns is not None
            everything_ns = sum(rest for other, rest in todo.items() if not other[0] or key[0])
            assert everything_ns / pace + 1e6 > deadline_ns - now_ns, "even with all of it done first it would begin"
        else:
            queues.add(f"r{number}", kind, deadline_ns, cost_ns, now_ns)
            todo[key] = float(cost_ns[0])
        now_ns += gap_ms * MS_NS
        budget = gap_ms * MS_NS * pace
        for key in sorted(todo):
            done = min(budget, todo[key])
            todo[key] -= done
            budget -= done
            if todo[key] <= 1e-3:
                del todo[key]
                queues.remove(f"r{key[2]}", now_ns)
    for key in list(todo):
        queues.remove(f"r{key[2]}", now_ns)
    assert not queues.waiting
    assert not any(queues.num.values())
    assert all(level.cost_ns == 0 and level.work_ns == 0 for level in queues.levels.values())
