"""The scheduler is a pure object: criticality, deadlines, meeting at the same node, batch limits, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.worker.scheduler import CRITICALITIES, Scheduler, Unit

MS = 1_000_000


def unit(
    request: str,
    node: str = "n",
    order: int = 0,
    criticality: str = "planning",
    deadline_ms: float | None = None,
    key: object = None,
    arrival: int = 0,
) -> Unit[str]:
    deadline_ns = None if deadline_ms is None else int(deadline_ms * MS)
    return Unit(request, ("m", node), key, criticality, order, arrival, 0, request, deadline_ns)


def names(batch: list[Unit[str]]) -> list[str]:
    return [u.work for u in batch]


def test_control_overtakes_planning_and_generation() -> None:
    scheduler: Scheduler[str] = Scheduler(8)
    scheduler.add(
        [unit("g", criticality="generation"), unit("p", node="q"), unit("c", node="r", criticality="control")]
    )
    assert [names(scheduler.next_batch(0)) for _ in range(3)] == [["c"], ["p"], ["g"]]
    assert scheduler.next_batch(0) == []


def test_requests_that_started_apart_meet_at_the_same_node() -> None:
    scheduler: Scheduler[str] = Scheduler(8)
    scheduler.add([unit("ahead", node="predict", order=2), unit("behind", node="encode", order=0)])
    assert names(scheduler.next_batch(0)) == ["behind"]
    scheduler.add([unit("behind", node="predict", order=2)])
    assert names(scheduler.next_batch(0)) == ["ahead", "behind"]


def test_under_steady_load_nobody_starves() -> None:
    scheduler: Scheduler[str] = Scheduler(2, patience=8)
    scheduler.add([unit("late", node="codec", order=9)])
    scheduler.add([unit(f"r{i}", node="decode", order=1, arrival=i) for i in range(6)])
    ran: list[str] = []
    while "late" not in ran:
        batch = scheduler.next_batch(0)
        ran += names(batch)
        scheduler.add([unit(u.request_id, node="decode", order=1, arrival=100 + len(ran)) for u in batch])
        assert len(ran) < 30
    assert len(ran) >= 2 * 8, "the least advanced go first for a while"


def test_an_overdue_unit_waits_for_more_critical_and_urgent_ones() -> None:
    scheduler: Scheduler[str] = Scheduler(1, patience=2)
    scheduler.add([unit("overdue", node="a", order=9)])
    for index in range(5):
        scheduler.add([unit(f"c{index}", node="b", criticality="control")])
        assert names(scheduler.next_batch(0)) == [f"c{index}"]
    scheduler.add([unit("urgent", node="c", order=5, deadline_ms=10), unit("normal", node="d", order=0)])
    assert [names(scheduler.next_batch(0)) for _ in range(3)] == [["urgent"], ["overdue"], ["normal"]]


def test_a_close_deadline_runs_ahead() -> None:
    scheduler: Scheduler[str] = Scheduler(8, urgent_ns=20 * MS)
    scheduler.add([unit("early", node="a", order=0, deadline_ms=500), unit("late", node="b", order=5, deadline_ms=110)])
    assert names(scheduler.next_batch(100 * MS)) == ["late"]


def test_batches_share_node_and_key_and_keep_the_limit() -> None:
    scheduler: Scheduler[str] = Scheduler(2)
    scheduler.add(
        [
            unit("a", key=1, arrival=1),
            unit("b", key=2, arrival=2),
            unit("c", key=1, arrival=3),
            unit("d", key=1, arrival=4),
        ]
    )
    assert [names(scheduler.next_batch(0)) for _ in range(3)] == [["a", "c"], ["b"], ["d"]]


def test_removed_requests_never_run() -> None:
    scheduler: Scheduler[str] = Scheduler(8)
    scheduler.add([unit("a"), unit("b"), unit("a", node="m")])
    scheduler.remove_request("a")
    assert names(scheduler.next_batch(0)) == ["b"]
    assert len(scheduler) == 0


units = st.builds(
    unit,
    st.sampled_from("abcdef"),
    node=st.sampled_from("xyz"),
    order=st.integers(0, 3),
    criticality=st.sampled_from(CRITICALITIES),
    deadline_ms=st.none() | st.integers(0, 100),
    key=st.integers(0, 2),
    arrival=st.integers(0, 1000),
)


@given(st.lists(units, max_size=30), st.integers(1, 5), st.integers(0, 100))
def test_every_unit_runs_once_in_legal_batches(ready: list[Unit[str]], max_batch: int, now_ms: int) -> None:
    scheduler: Scheduler[str] = Scheduler(max_batch)
    scheduler.add(ready)
    taken: list[int] = []
    while batch := scheduler.next_batch(now_ms * MS):
        assert len(batch) <= max_batch
        assert len({(u.engine_id, u.batch_key) for u in batch}) == 1
        left = [u for u in ready if id(u) not in taken]
        most_critical = min(CRITICALITIES.index(u.criticality) for u in left)
        assert CRITICALITIES.index(batch[0].criticality) == most_critical
        taken += [id(u) for u in batch]
    assert sorted(taken) == sorted(id(u) for u in ready)
