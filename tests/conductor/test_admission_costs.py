"""What a request costs, from what its ranks tell of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admission_rig import ACT, MODEL, ONE, placed

from mstar_rt.conductor.admission_costs import MAX_VARIANTS, CostBook, TaskCosts
from mstar_rt.conductor.admission_samples import (
    ENOUGH,
    EVERY_NS,
    FEW,
    MAX_BETWEEN_US,
    OLD_NS,
    TOO_OLD_NS,
    WINDOW,
    typical,
)
from mstar_rt.graph import GraphNode, Loop, Sequential, Walk, WalkGraph
from mstar_rt.message import NodeTime, WalkDone
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec
from mstar_rt.placement import PlacedModel, place

NODE = ("look", "see")


def costs_of(model: ServedModel = MODEL, task: str = "look") -> TaskCosts:
    placement = placed(ONE) if model is MODEL else place({model.name: PlacedModel(model.graph, {})}, (), (0,))
    return CostBook({model.name: model}, placement).of(model.name, task)


def done(rank: int = 0, wait_us: float = 0.0, **times: NodeTime) -> WalkDone:
    return WalkDone("r", 1, rank, 0, times, {}, {}, wait_us=wait_us)


def note(costs: TaskCosts, run_us: float, now_ns: int = 0, num_steps: int = 1, batched_with: int = 0,
         wait_us: float = 0.0, batched_own: int = 0) -> None:  # fmt: skip
    part = done(wait_us=wait_us, see=NodeTime(num_steps, 0.0, run_us, batched_with, batched_own))
    costs.note(costs.kind({}), [("look", part)], now_ns)


def cost_us(costs: TaskCosts, num_together: int = 1) -> float:
    return costs.estimate(costs.kind({}), num_together)[NODE][0]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=WINDOW))
def test_what_is_typical_of_many_is_passed_by_a_tenth_of_them_at_most(values: list[float]) -> None:
    found = typical(values)
    assert found in values
    above = sum(value > found for value in values)
    assert above <= (len(values) / 2 if len(values) <= FEW else 0.1 * len(values))
    if len(values) > FEW:
        assert sum(value >= found for value in values) >= 0.1 * len(values)


def test_nothing_is_known_before_anything_ran() -> None:
    costs = costs_of()
    assert costs.estimate(costs.kind({})) == {}


def test_a_share_of_each_step_counts_for_so_many_or_more_and_all_of_it_for_one() -> None:
    costs = costs_of()
    for _ in range(ENOUGH):
        note(costs, 1000.0, num_steps=4, batched_with=12)  # each with three others
    assert [cost_us(costs, num) for num in (1, 2, 4, 9)] == pytest.approx([1000.0, 500.0, 250.0, 250.0])
    note(costs, 600.0)
    assert [cost_us(costs, num) for num in (1, 2, 4, 9)] == pytest.approx([600.0, 500.0, 250.0, 250.0])


def test_a_step_with_several_units_of_a_request_counts_once() -> None:
    costs = costs_of()
    note(costs, 2 * 600.0, num_steps=2, batched_own=2, wait_us=100.0)  # two branches in one step
    assert cost_us(costs) == pytest.approx(700.0)
    for _ in range(ENOUGH):
        note(costs, 2 * 1000.0, num_steps=2, batched_own=2, batched_with=12, wait_us=100.0)  # and of three others
    assert [cost_us(costs, num) for num in (1, 2, 4)] == pytest.approx([700.0, 550.0, 275.0])


def test_shares_count_where_there_are_enough_of_them_the_largest_and_not_too_old() -> None:
    costs = costs_of()
    note(costs, 600.0)
    for run_us in (800.0, 700.0):
        note(costs, run_us, batched_with=1)
        assert cost_us(costs, 2) == pytest.approx(600.0)
    note(costs, 720.0, batched_with=1)
    assert cost_us(costs, 2) == pytest.approx(400.0)
    note(costs, 600.0, now_ns=TOO_OLD_NS + 1)
    assert cost_us(costs, 2) == pytest.approx(600.0)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.8, 1.0)), min_size=3, max_size=12),
    st.floats(0.0, 100.0),
    st.floats(0.1, 100.0),
    st.integers(1, 20),
)
def test_no_number_is_ever_taken_to_cost_less_than_it_does(
    seen: list[tuple[int, float]], fixed_us: float, each_us: float, num: int
) -> None:
    """Where a step takes so much and so much for each in it; the slowest of each size is seen often enough."""
    costs = costs_of()
    for size, speed in seen:
        for factor in (speed, 1.0, 1.0, 1.0):
            note(costs, (fixed_us + each_us * size) * factor, num_steps=1, batched_with=size - 1)
    assert num * cost_us(costs, num) >= (fixed_us + each_us * num) * (1 - 1e-9)


def test_what_passes_between_steps_counts_as_the_least_that_was_seen() -> None:
    costs = costs_of()
    note(costs, 1000.0, num_steps=2, wait_us=5e6)  # it waited for somebody
    assert cost_us(costs) == pytest.approx(1000.0 + 2 * MAX_BETWEEN_US)
    note(costs, 1000.0, num_steps=2, wait_us=100.0)
    assert cost_us(costs) == pytest.approx(1100.0)
    note(costs, 1000.0, num_steps=2, wait_us=5e6)
    assert cost_us(costs) == pytest.approx(1100.0)


def test_of_many_requests_few_are_looked_at_and_old_ones_are_forgotten() -> None:
    costs = costs_of()
    for index in range(200):
        note(costs, 1000.0, now_ns=index * EVERY_NS // 10)
    note(costs, 9000.0, now_ns=20 * EVERY_NS + 1)
    assert cost_us(costs) == 1000.0
    for index in range(3):
        note(costs, 2000.0, now_ns=20 * EVERY_NS + OLD_NS + (index + 1) * EVERY_NS)
    for _ in range(4):  # estimates are made anew after some more
        note(costs, 2000.0, now_ns=30 * EVERY_NS + OLD_NS)
    assert cost_us(costs) == 2000.0


def test_any_number_of_variants_is_bounded_and_the_defaults_stay_known() -> None:
    model = variants_of_floats()
    costs = costs_of(model, "act")
    part = [("act", done(a=NodeTime(1, 0.0, 5.0, 0), b=NodeTime(6, 0.0, 60.0, 0)))]
    for index in range(5 * MAX_VARIANTS):
        costs.note(costs.kind({"scale": float(index)}), part, index * EVERY_NS)
    assert len(costs._samples) == MAX_VARIANTS
    assert costs.estimate(costs.kind({"scale": -1.0}))["act", "a"] == {0: 5.0}


def variants_of_floats() -> ServedModel:
    """A loop in a loop, each turned by an option."""
    a, b = GraphNode("a", ("x",), ("y",)), GraphNode("b", ("y",), ("y",))
    inner = Loop("inner", b, times="num_inner", limit=9, carry={"y": "y"})
    outer = Loop("outer", inner, times="num_outer", limit=9, carry={"y": "y"})
    last = GraphNode("last", ("y",), ("z",))
    graph = WalkGraph((a, b, last), (Walk("act", Sequential(a, outer, last), emit=("z",)),))
    params = (
        ParamSpec("scale", "float", 1.0, "a number"),
        ParamSpec("num_inner", "int", 2, "turns", minimum=1, maximum=9),
        ParamSpec("num_outer", "int", 3, "turns", minimum=1, maximum=9),
    )
    outputs = (replace(ACT.outputs[0], name="z"),)
    task = TaskSpec("act", "act", ACT.inputs, outputs, ("act",), params, criticality="control")
    return ServedModel("n", "toy", "for tests", graph, (task,), "nowhere:nodes")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_nested_loops_turn_as_often_as_asked(did_inner: int, did_outer: int, inner: int, outer: int) -> None:
    """Whatever the request did that was measured: it may have left the loops early."""
    costs = costs_of(variants_of_floats(), "act")
    steps = did_inner * did_outer
    part = WalkDone(
        "r", 1, 0, 0, {"a": NodeTime(1, 0.0, 7.0, 0), "b": NodeTime(steps, 0.0, 10.0 * steps, 0)}, {},
        {"inner": steps, "outer": did_outer},
    )  # fmt: skip
    costs.note(costs.kind({}), [("act", part)], 0)
    estimate = costs.estimate(costs.kind({"num_inner": inner, "num_outer": outer}))
    assert estimate["act", "a"] == {0: 7.0}
    assert estimate["act", "b"][0] == pytest.approx(10.0 * inner * outer)
