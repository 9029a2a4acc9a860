"""The scheduler is a pure object: criticality, deadlines, meeting at the same node, batch limits, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.scheduler import Scheduler
from mstar_rt.worker.scheduler_clients import LAG_NS, ClientShares
from mstar_rt.worker.scheduler_share import PATIENCE_NS
from mstar_rt.worker.unit import CRITICALITIES, Decision, Unit

MS = 1_000_000


def unit(
    request: str,
    node: str = "n",
    order: int = 0,
    criticality: str = "planning",
    deadline_ms: float | None = None,
    key: object = None,
    arrival: int = 0,
    needed_ms: float | None = None,
    walk: str | None = None,
    client: str = "",
    drop_after_ms: float | None = None,
) -> Unit[str]:
    deadline_ns, remaining_ns, drop_after_ns = (
        None if ms is None else int(ms * MS) for ms in (deadline_ms, needed_ms, drop_after_ms)
    )
    return Unit(
        request, ("m", node), key, criticality, order, arrival, 0, request, deadline_ns, 1, client, arrival, walk,
        remaining_ns, drop_after_ns,
    )  # fmt: skip


def costs(**alone_and_each_ms: tuple[float, float]) -> CostModel:
    """By node: what a step takes alone and what each further unit adds, measured up to 8 units."""
    model = CostModel()
    for node, (alone_ms, each_ms) in alone_and_each_ms.items():
        for size in range(1, 9):
            for _ in range(2):
                model.observe(("m", node), None, size, int((alone_ms + each_ms * (size - 1)) * MS))
    return model


def names(decision: Decision[str]) -> list[str]:
    return [u.work for u in decision.batch]


def test_control_overtakes_planning_and_generation() -> None:
    scheduler: Scheduler[str] = Scheduler(8)
    scheduler.add(
        [unit("g", criticality="generation"), unit("p", node="q"), unit("c", node="r", criticality="control")]
    )
    assert [names(scheduler.next_batch(0)) for _ in range(3)] == [["c"], ["p"], ["g"]]
    assert scheduler.next_batch(0).batch == []


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
        decision = scheduler.next_batch(0)
        ran += names(decision)
        scheduler.add([unit(u.request_id, node="decode", order=1, arrival=100 + len(ran)) for u in decision.batch])
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
    scheduler: Scheduler[str] = Scheduler(8, unmeasured_ns=20 * MS)
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


def test_the_less_advanced_request_catches_up_only_while_nobody_is_late() -> None:
    """One that has 4 ms of work left lets another one, which has 9, come up to it if that takes a third of the time
    until 30: more may come, and ask for the same."""
    for late_by_ms, expected in ((0, ["behind"]), (1, ["ahead"])):
        scheduler: Scheduler[str] = Scheduler(8, costs(see=(5, 1), act=(4, 1)))
        scheduler.add(
            [
                unit("ahead", node="act", order=1, deadline_ms=30, needed_ms=4, walk="w"),
                unit("behind", node="see", order=0, deadline_ms=90, needed_ms=9, walk="w"),
            ]
        )
        assert names(scheduler.next_batch((3 + late_by_ms) * MS)) == expected


def test_work_without_a_deadline_runs_only_while_all_that_is_due_can_still_be_served() -> None:
    def first(now_ms: float) -> list[str]:
        scheduler: Scheduler[str] = Scheduler(8, costs(free=(5, 1)))
        scheduler.add(
            [
                unit("free", node="free", order=0),
                unit("a", node="a", order=5, deadline_ms=50, needed_ms=10),
                unit("b", node="b", order=5, deadline_ms=52, needed_ms=10),
            ]
        )
        return names(scheduler.next_batch(int(now_ms * MS)))

    assert first(27) == ["free"], "it ends at 32, a at 42, b at 52"
    assert first(27.5) == ["a"]


def test_of_requests_that_cannot_meet_a_close_deadline_runs_and_a_far_one_takes_its_turn() -> None:
    def first(now_ms: int) -> list[str]:
        scheduler: Scheduler[str] = Scheduler(8, costs(a=(1, 1), b=(1, 1)))
        later = unit("later", node="a", order=0, deadline_ms=9000, needed_ms=1, walk="v", drop_after_ms=8999)
        sooner = unit("sooner", node="b", order=7, deadline_ms=8000, needed_ms=1, walk="w", drop_after_ms=7999)
        scheduler.add([later, sooner])
        return names(scheduler.next_batch(now_ms * MS))

    assert first(7898) == ["later"]
    assert first(7899) == ["sooner"]


def test_what_cannot_make_its_deadline_is_dropped_before_it_is_computed() -> None:
    scheduler: Scheduler[str] = Scheduler(8)
    hopeless = unit("hopeless", deadline_ms=50, drop_after_ms=40)
    scheduler.add([hopeless, unit("fine", node="m", deadline_ms=60, drop_after_ms=50)])
    assert scheduler.next_batch(40 * MS) == Decision([hopeless], [])
    scheduler.add([hopeless])
    decision = scheduler.next_batch(41 * MS)
    assert (names(decision), decision.dropped) == (["fine"], [hopeless])
    scheduler.add([hopeless])
    decision = scheduler.next_batch(41 * MS)
    assert (decision.batch, decision.dropped) == ([], [hopeless])


def test_a_batch_is_filled_as_long_as_everybody_stays_in_time() -> None:
    def filled(**others: Unit[str]) -> int:
        scheduler: Scheduler[str] = Scheduler(8, costs(n=(4, 2)))
        scheduler.add([unit(f"r{i}", criticality="control", arrival=i) for i in range(8)])
        scheduler.add(others.values())
        return len(scheduler.next_batch(0).batch)

    assert filled() == 8

    def other(deadline_ms: int, criticality: str = "control") -> Unit[str]:
        return unit("other", "x", 1, criticality, deadline_ms, needed_ms=6)

    assert filled(other=other(24)) == 8, "takes 18"
    assert filled(other=other(23)) == 7
    assert filled(other=other(10)) == 1
    assert filled(member=unit("member", order=1, criticality="control", deadline_ms=13, needed_ms=7)) == 4, "and 3 more"
    assert filled(other=other(10, "planning")) == 8, "less critical work waits"


def test_a_batch_is_not_cut_for_those_who_are_late_anyway() -> None:
    scheduler: Scheduler[str] = Scheduler(8, costs(n=(4, 2)))
    scheduler.add([unit(f"r{i}", criticality="control", arrival=i, deadline_ms=3, needed_ms=4) for i in range(8)])
    assert len(scheduler.next_batch(0).batch) == 8


def test_a_batch_is_filled_up_to_the_bound_of_a_step() -> None:
    scheduler: Scheduler[str] = Scheduler(8, costs(n=(4, 2)), max_step_ns=11 * MS)
    scheduler.add([unit(f"r{i}", arrival=i) for i in range(8)])
    assert [len(scheduler.next_batch(0).batch) for _ in range(2)] == [4, 4]
    parts = [unit(f"p{i}", arrival=i) for i in range(3)]
    for part in parts:
        part.num_items = 3
    scheduler.add(parts)
    assert names(scheduler.next_batch(0)) == ["p0", "p1", "p2"], "the worker cuts them"
    scheduler.add(parts)
    scheduler.add([unit("other", "x", 1, deadline_ms=15, needed_ms=5)])
    assert names(scheduler.next_batch(0)) == ["p0"], "4 + 2 * 2, and 6 more for the next one"


def test_where_one_is_over_the_bound_as_many_run_as_take_half_as_long_again() -> None:
    for more_ms, expected in ((0.5, 8), (1, 6), (6, 1)):
        scheduler: Scheduler[str] = Scheduler(8, costs(n=(10, more_ms)), max_step_ns=4 * MS)
        scheduler.add([unit(f"r{i}", arrival=i) for i in range(8)])
        assert len(scheduler.next_batch(0).batch) == expected


def test_where_one_is_over_the_bound_larger_batches_are_tried() -> None:
    """A language model takes as long for eight as for one, which nobody knows who has only seen one."""
    for more_ms, expected in ((0, [2, 2, 4, 4, 8, 8, 8]), (9, [2, 2, 1, 1, 1, 1, 1])):
        cost = CostModel()
        for _ in range(2):
            cost.observe(("m", "n"), None, 1, 10 * MS)
        scheduler: Scheduler[str] = Scheduler(8, cost, max_step_ns=4 * MS)
        sizes = []
        for turn in range(7):
            scheduler.add([unit(f"{turn}-{i}", arrival=i) for i in range(8)])
            batch = scheduler.next_batch(0).batch
            sizes.append(len(batch))
            cost.observe(("m", "n"), None, len(batch), (10 + more_ms * (len(batch) - 1)) * MS)
            for left in [*scheduler]:
                scheduler.remove_request(left.request_id)
        assert sizes == expected


def test_a_class_below_is_served_when_it_is_owed_time() -> None:
    scheduler: Scheduler[str] = Scheduler(1, costs(c=(10, 10), g=(10, 10)), lower_share=0.5)
    scheduler.add([unit(f"c{i}", node="c", criticality="control") for i in range(40)])
    scheduler.add([unit(f"g{i}", node="g", criticality="generation") for i in range(40)])
    ran = []
    for _ in range(40):
        decision = scheduler.next_batch(0)
        scheduler.ran(decision.batch, 10 * MS)
        ran.append(names(decision)[0][0])
    num_before = ran.index("g")
    assert 0.5 * (num_before - 1) * 10 * MS <= PATIENCE_NS < 0.5 * num_before * 10 * MS
    assert ran[num_before:].count("g") in (len(ran[num_before:]) // 2, len(ran[num_before:]) // 2 + 1)


def test_a_client_that_is_far_behind_comes_first() -> None:
    shares: ClientShares[str] = ClientShares()
    greedy, modest = unit("a", client="greedy"), unit("b", client="modest")
    greedy.number, modest.number = 1, 2
    shares.add(greedy)
    shares.add(modest)
    shares.charge("greedy", LAG_NS)
    assert shares.behind(greedy) is None
    shares.charge("greedy", 1)
    assert shares.behind(greedy) is modest
    assert shares.behind(modest) is None
    shares.charge("modest", 1)
    assert shares.behind(greedy) is None


def test_time_that_a_client_did_not_ask_for_is_not_saved_up() -> None:
    shares: ClientShares[str] = ClientShares()
    busy, back = unit("a", client="busy"), unit("b", client="back")
    busy.number, back.number = 1, 2
    shares.charge("back", 1)
    shares.add(busy)
    shares.charge("busy", 100 * LAG_NS)
    shares.add(back)
    shares.charge("back", 1)
    assert shares.behind(busy) is None


def test_what_was_taken_does_not_pile_up() -> None:
    """Late nodes are taken for their deadlines, early ones for their order: neither stays behind in the other's heap."""
    scheduler: Scheduler[str] = Scheduler(1)
    for number in range(3000):
        scheduler.add(
            [
                unit("late", order=9, arrival=number, deadline_ms=number, drop_after_ms=10**6),
                unit("early", order=0, arrival=number),
            ]
        )
        for _ in range(2):
            scheduler.next_batch(number * MS)
        scheduler.add([unit("stays", order=5, arrival=number)] if number < 10 else [])
    planning = scheduler._classes[1]
    (group,) = scheduler._groups.values()
    held = [len(planning._by_order), len(planning._by_age), len(group._heap), len(scheduler._by_drop)]
    assert max(held) < 200
    assert len(scheduler) == 10


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
    while batch := scheduler.next_batch(now_ms * MS).batch:
        assert len(batch) <= max_batch
        assert len({(u.engine_id, u.batch_key) for u in batch}) == 1
        left = [u for u in ready if id(u) not in taken]
        most_critical = min(CRITICALITIES.index(u.criticality) for u in left)
        assert CRITICALITIES.index(batch[0].criticality) == most_critical
        taken += [id(u) for u in batch]
    assert sorted(taken) == sorted(id(u) for u in ready)
