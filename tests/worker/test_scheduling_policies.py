"""Whatever comes and goes in whatever order: every policy runs every unit once, in legal batches, and never idles."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.scheduler_choice import choose_policy
from mstar_rt.worker.unit import CLASS_OF, CRITICALITIES, SchedulingPolicy, Unit

MS = 1_000_000
MAX_BATCH = 4
REQUESTS = st.sampled_from("abcdefgh")


class PolicyMachine(RuleBasedStateMachine):
    """A worker's calls in any order, against a plain set of what is ready."""

    scheduling = "deadline"

    def __init__(self) -> None:
        super().__init__()
        self.policy: SchedulingPolicy[int]
        self.ready: dict[int, Unit[int]] = {}
        self.parked: list[Unit[int]] = []
        self.now_ns = 0
        self.num_units = 0

    @initialize(share=st.sampled_from([0.0, 0.05, 0.5]), max_step_ns=st.none() | st.just(10 * MS))
    def begin(self, share: float, max_step_ns: int | None) -> None:
        self.costs = CostModel()
        self.max_step_ns = max_step_ns
        self.policy = choose_policy(self.scheduling, MAX_BATCH, self.costs, share, max_step_ns)

    @rule(
        request=REQUESTS,
        node=st.sampled_from("xyz"),
        key=st.integers(0, 1),
        criticality=st.sampled_from(CRITICALITIES),
        order=st.integers(0, 3),
        budget_ms=st.none() | st.integers(0, 60),
        needed_ms=st.none() | st.integers(0, 40),
        client=st.sampled_from("pq"),
        can_drop=st.booleans(),
        num_items=st.sampled_from([1, 1, 1, 5]),
    )
    def add(
        self, request: str, node: str, key: int, criticality: str, order: int, budget_ms: int | None,
        needed_ms: int | None, client: str, can_drop: bool, num_items: int,
    ) -> None:  # fmt: skip
        self.num_units += 1
        deadline_ns = None if budget_ms is None else self.now_ns + budget_ms * MS
        needed_ns = None if needed_ms is None else needed_ms * MS
        drop_after_ns = None if deadline_ns is None or not can_drop else deadline_ns - max(1, (needed_ns or 0) // 2)
        unit = Unit(
            request, ("m", node), key, criticality, order, self.num_units, self.now_ns, self.num_units, deadline_ns,
            num_items, client, ord(request), node if order else None, needed_ns, drop_after_ns,
        )  # fmt: skip
        self.ready[unit.work] = unit
        self.policy.add_one(unit)

    @precondition(lambda self: self.parked)
    @rule()
    def add_again(self) -> None:
        """A part that others follow, or one that found no pages: the same unit is ready again."""
        unit = self.parked.pop()
        self.ready[unit.work] = unit
        self.policy.add((unit,))

    @rule(request=REQUESTS)
    def remove(self, request: str) -> None:
        self.policy.remove_request(request)
        self.ready = {number: unit for number, unit in self.ready.items() if unit.request_id != request}

    @rule(millis=st.integers(0, 30))
    def wait(self, millis: int) -> None:
        self.now_ns += millis * MS

    @rule(step_ms=st.integers(1, 30), keep=st.booleans())
    def decide(self, step_ms: int, keep: bool) -> None:
        decision = self.policy.next_batch(self.now_ns)
        for unit in decision.dropped:
            assert unit.drop_after_ns is not None
            assert self.now_ns > unit.drop_after_ns
            del self.ready[unit.work]
        if not decision.batch:
            assert not self.ready, "it idles while units are ready"
            return
        self._check(decision.batch)
        for unit in decision.batch:
            del self.ready[unit.work]
        self.policy.ran(decision.batch, step_ms * MS)
        first = decision.batch[0]
        self.costs.observe(first.engine_id, first.batch_key, sum(u.num_items for u in decision.batch), step_ms * MS)
        if keep:
            self.parked += decision.batch

    def _check(self, batch: list[Unit[int]]) -> None:
        assert len(batch) <= MAX_BATCH
        assert len({(unit.engine_id, unit.batch_key) for unit in batch}) == 1
        assert len({unit.work for unit in batch}) == len(batch)
        assert all(self.ready[unit.work] is unit for unit in batch)

    @invariant()
    def knows_what_is_ready(self) -> None:
        if not hasattr(self, "policy"):
            return
        assert len(self.policy) == len(self.ready)
        assert sorted(unit.work for unit in self.policy) == sorted(self.ready)


class DeadlineMachine(PolicyMachine):
    """Besides, its batches begin with the most critical class, unless that owes others time."""

    def _check(self, batch: list[Unit[int]]) -> None:
        super()._check(batch)
        highest = min(CLASS_OF[unit.criticality] for unit in self.ready.values())
        if CLASS_OF[batch[0].criticality] != highest:
            assert self.policy._share.is_owed(highest), "a lower class ran that was owed nothing"  # type: ignore[attr-defined]


class FcfsMachine(PolicyMachine):
    scheduling = "fcfs"

    def _check(self, batch: list[Unit[int]]) -> None:
        super()._check(batch)
        assert batch[0].age == min(unit.age for unit in self.ready.values())


class RoundRobinMachine(PolicyMachine):
    scheduling = "round_robin"


@pytest.mark.parametrize("machine", [DeadlineMachine, FcfsMachine, RoundRobinMachine])
def test_every_unit_runs_once_whatever_happens(machine: type[PolicyMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))


def test_round_robin_gives_every_node_its_turn() -> None:
    policy: SchedulingPolicy[str] = choose_policy("round_robin", 2, CostModel(), 0.05, None)
    policy.add(
        Unit(name, ("m", name[0]), None, "control", 0, number, 0, name)
        for number, name in enumerate(["a1", "a2", "a3", "b1", "c1"])
    )
    ran = [[unit.work for unit in policy.next_batch(0).batch] for _ in range(4)]
    assert ran == [["a1", "a2"], ["b1"], ["c1"], ["a3"]]


def test_first_come_first_served_finishes_the_oldest_request_first() -> None:
    policy: SchedulingPolicy[str] = choose_policy("fcfs", 2, CostModel(), 0.05, None)
    policy.add(
        Unit(name, ("m", name), None, kind, 0, number, 0, name, age=age)
        for number, (name, kind, age) in enumerate([("tick", "control", 2), ("paint", "generation", 1)])
    )
    assert policy.next_batch(0).batch[0].work == "paint"
    policy.add_one(Unit("paint", ("m", "paint"), None, "generation", 1, 9, 0, "paint again", age=1))
    assert policy.next_batch(0).batch[0].work == "paint again"
