"""Units in parts: how batches are cut, and one worker that runs them between control ticks, failures and shortages."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from parts_model import ITEM_NS, declare
from worker_rig import WorkerRig

from mstar_rt.clock import ManualClock
from mstar_rt.message import CancelRequest, WalkDone, WalkFailed
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.worker.overruns import Overruns
from mstar_rt.worker.parts import Parts, has_more, items_of
from mstar_rt.worker.step_sizes import ENOUGH, StepSizes
from mstar_rt.worker.unit import Unit

NODE = ("m", "n")
OF_100 = 112
"""The bound that leads to steps that are expected to take 100."""


# --- how batches are cut ---------------------------------------------------------------------------------------------


def unit(num_items: int, done: int = 0) -> Unit[Any]:
    call = NodeCall("r", "r", "w", (), {}, {}, lambda: 0, num_items=num_items)
    return Unit("r", NODE, None, "planning", 0, 0, 0, cast(Any, SimpleNamespace(call=call)), num_items=num_items - done)


def cutter(item_ns: int = 10, bound_ns: int | None = OF_100, sizes: tuple[int, ...] = (1, 4, 10)) -> Parts:
    parts = Parts(bound_ns)
    for size in sizes:
        for _ in range(8):
            parts.observe(NODE, None, size, size * item_ns)
    return parts


def taken(units: list[Unit[Any]]) -> list[range | None]:
    return [unit.work.call.part for unit in units]


def test_without_a_bound_everything_runs_whole() -> None:
    whole = [unit(1000), unit(7)]
    assert cutter(bound_ns=None).cut(whole) == []
    assert taken(whole) == [None, None]
    assert items_of(whole) == 1007


def test_what_fits_runs_whole_and_what_does_not_in_equal_parts() -> None:
    parts = cutter()
    small, large = [unit(4), unit(6)], unit(23)
    assert parts.cut(small) == []
    assert taken(small) == [None, None]
    seen = []
    while True:
        batch = [large]
        assert parts.cut(batch) == []
        seen.append(large.work.call.part)
        assert items_of(batch) == len(seen[-1])
        if not has_more(large, NodeResult({}, progress=len(seen))):
            break
        assert large.work.call.progress == len(seen)
    assert seen == [range(8), range(8, 16), range(16, 23)]


def test_a_batch_is_filled_to_the_bound_and_the_rest_waits() -> None:
    batch = [unit(4), unit(5, done=2), unit(9), unit(1)]
    later = cutter().cut(batch)
    assert taken(batch) == [None, range(2, 5), range(3)]
    assert [unit.num_items for unit in later] == [1]
    assert items_of(batch) == 10


def test_what_was_never_measured_and_an_item_over_the_bound_run_one_by_one() -> None:
    for parts in (Parts(OF_100), cutter(item_ns=1000, sizes=(1, 2))):
        batch = [unit(3), unit(1)]
        later = parts.cut(batch)
        assert (taken(batch), len(later)) == ([range(1)], 1)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 2000),
    st.integers(0, 300),
    st.sets(st.integers(1, 64), max_size=4),
)
def test_every_item_runs_once_in_steps_that_keep_the_bound_but_for_tries(
    lengths: list[int], bound_ns: int, fixed_ns: int, known: set[int]
) -> None:
    parts, ready = Parts(bound_ns * 10 // 9 + 1), [unit(length) for length in lengths]
    for size in known:
        for _ in range(ENOUGH):
            parts.observe(NODE, None, size, fixed_ns + 10 * size)
    seen: dict[int, list[int]] = {id(unit): [] for unit in ready}
    calls = {id(unit): unit.work.call for unit in ready}
    too_long: dict[int, int] = {}
    alone_ns = fixed_ns + 10
    most_ns = bound_ns if alone_ns <= bound_ns else max(bound_ns, 1.5 * alone_ns)
    while ready:
        batch = list(ready)
        ready = parts.cut(batch)
        num_items = items_of(batch)
        assert batch
        assert num_items >= 1
        # Sizes over 16 are rounded, which may make a step of them look up to an eighth shorter.
        if num_items > 1 and fixed_ns + 10 * num_items > 1.13 * most_ns:
            too_long[num_items] = too_long.get(num_items, 0) + 1
        parts.observe(NODE, None, num_items, fixed_ns + 10 * num_items)
        for one in batch:
            call = one.work.call
            seen[id(one)] += call.part if call.part is not None else range(call.num_items)
            if has_more(one, NodeResult({})):
                ready.append(one)
    assert all(items == list(range(calls[key].num_items)) for key, items in seen.items())
    assert all(count <= ENOUGH for count in too_long.values())


# --- sizes -----------------------------------------------------------------------------------------------------------


def grown(took: Callable[[int], float], num_steps: int = 80, sizes: StepSizes | None = None) -> list[int]:
    sizes, seen = sizes or StepSizes(100), []
    for _ in range(num_steps):
        seen.append(sizes.most)
        sizes.observe(seen[-1], int(took(seen[-1])))
    return seen


@pytest.mark.parametrize(
    ("fixed_ns", "item_ns", "steady"), [(0, 10, 10), (70, 1, 30), (55, 40, 1), (98, 1, 2), (45, 50, 1), (10, 0.5, 180)]
)
def test_sizes_grow_to_what_fits_whatever_a_step_costs_besides_its_items(
    fixed_ns: float, item_ns: float, steady: int
) -> None:
    seen = grown(lambda size: fixed_ns + item_ns * size)
    assert abs(seen[-1] - steady) <= steady // 8
    too_long = [size for size in seen if int(fixed_ns + item_ns * size) > 100]
    assert len(too_long) <= ENOUGH
    assert max(too_long, default=0) <= steady + 1


@pytest.mark.parametrize(("fixed_ns", "item_ns", "steady"), [(290, 10, 16), (200, 100, 2), (0, 300, 1), (300, 1, 150)])
def test_where_one_item_is_over_the_bound_as_many_run_as_take_half_as_long_again(
    fixed_ns: float, item_ns: float, steady: int
) -> None:
    """A language model reads its weights once for however many tokens."""
    seen = grown(lambda size: fixed_ns + item_ns * size, 200)
    assert abs(seen[-1] - steady) <= steady // 8
    too_long = [size for size in seen if int(fixed_ns + item_ns * size) > 1.5 * (fixed_ns + item_ns)]
    assert len(too_long) <= ENOUGH


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_others_hold_up_do_not_make_parts_small(seed: int) -> None:
    draw = random.Random(seed)
    seen = grown(lambda size: 20 + 4 * size + (draw.random() < 0.2) * draw.expovariate(1 / 500), 400)
    assert sum(seen[50:]) / len(seen[50:]) > 12
    assert max(seen) <= 21


def test_a_machine_that_was_slow_is_noticed_to_be_fast_again_and_the_other_way_round() -> None:
    sizes = StepSizes(100)
    for pace in (1, 10, 1):
        seen = grown(lambda size, pace=pace: pace * (1 + size), 300, sizes)  # type: ignore[misc]
        assert 0.8 * (99 // pace) <= seen[-1] <= 99 // pace + pace


def test_items_that_differ_in_cost_are_counted_at_that_of_the_dear_ones() -> None:
    turn = iter(range(1000))
    seen = grown(lambda size: size * (20 if next(turn) % 2 else 5), 200)
    assert max(seen[100:]) <= 5


# --- one worker ------------------------------------------------------------------------------------------------------


class Rig(WorkerRig):
    def __init__(self, max_step_ms: float | None = 4.5, pages: int | None = None) -> None:
        model = declare("m", "", {})
        super().__init__(model, ManualClock(), max_step_ms=max_step_ms, spare_all_but=pages)
        self.clock: ManualClock
        self.allocator = self.loaded.pools["rows"].allocator

    def start(self, request: str, walk: str, x: Any, **given: Any) -> None:
        params = {"steps": 1, "fail_at": -1, "misbehave": "no"}
        params |= {name: given.pop(name) for name in list(given) if name in params}
        self.start_walk(request, walk, {"x": np.asarray(x, np.float32)}, params, **given)

    def warm(self) -> None:
        """Until the worker knows what items cost."""
        for number in range(4):
            for walk in ("gather", "store", "tick"):
                self.start(f"warm {walk} {number}", walk, np.arange(16))
            self.run()
        self.order.clear()

    def ys(self, request: str) -> list[np.ndarray]:
        return self.given[request]["y"]


def test_a_long_call_runs_in_parts_that_keep_the_bound_and_gives_the_same() -> None:
    rig, whole = Rig(), Rig(max_step_ms=None)
    rig.warm()
    x = np.linspace(0, 1, 30)
    for each in (rig, whole):
        each.start("g", "gather", x)
        each.start("s", "store", x, steps=3)
        each.run()
    for name in "gs":
        for one, other in zip(rig.ys(name), whole.ys(name), strict=True):
            np.testing.assert_array_equal(one, other)
    assert (whole.num_steps("g"), whole.num_steps("s")) == (1, 3)
    assert (rig.num_steps("g"), rig.num_steps("s")) == (8, 24)
    assert rig.worker.stats().get("over_bound/m/gather", 0) == 0
    assert "over_bound/m/gather" not in whole.worker.stats()


@pytest.mark.parametrize("walk", ["gather", "store"])
def test_a_control_tick_overtakes_between_two_parts(walk: str) -> None:
    rig = Rig()
    rig.warm()
    rig.start("long", walk, np.arange(40))
    rig.turn(3)
    started_ns = rig.clock.now_ns()
    rig.start("tick", "tick", [1.0], criticality="control", deadline_ns=started_ns + 5 * ITEM_NS)
    rig.turn()
    assert rig.order == ["tick"]
    assert rig.clock.now_ns() - started_ns <= 4 * ITEM_NS
    rig.run()
    assert isinstance(rig.ends["long"], WalkDone)


def test_parts_of_several_requests_share_steps() -> None:
    rig = Rig(max_step_ms=7.0)
    rig.warm()
    for name, count in {"a": 3, "b": 20, "c": 5, "d": 1}.items():
        rig.start(name, "store", np.arange(count) + count, steps=2)
    rig.run()
    for name, count in {"a": 3, "b": 20, "c": 5, "d": 1}.items():
        first = np.arange(count) + count + 1.0
        np.testing.assert_allclose(rig.ys(name), [first, (first + first - 1) / 2 + 1])
    assert sum(time.batched_with for end in rig.ends.values() for time in end.node_times.values()) > 0


@pytest.mark.parametrize("walk", ["gather", "store"])
@pytest.mark.parametrize(
    ("misbehave", "code", "sentence"),
    [
        ("raise", "INTERNAL", "failed (RuntimeError)"),
        ("own_error", "INVALID_ARGUMENT", "this number is refused"),
        ("outputs", "INTERNAL", r"gave outputs ['y'] with items 0 to"),
        ("no_outputs", "INTERNAL", r"gave outputs [], it declares ['y']"),
        ("items", "INTERNAL", "is 0, expected a whole number from 1"),
    ],
)
def test_a_part_that_fails_ends_its_request_alone(walk: str, misbehave: str, code: str, sentence: str) -> None:
    rig = Rig()
    rig.warm()
    x = np.arange(11)
    for name in ("good", "bad", "good too"):
        rig.start(name, walk, x, fail_at=9, misbehave=misbehave if name == "bad" else "no")
    rig.run()
    bad = rig.ends["bad"]
    assert isinstance(bad, WalkFailed)
    assert bad.code == code
    assert sentence in bad.message
    assert "secret" not in bad.message
    for name in ("good", "good too"):
        np.testing.assert_array_equal(rig.ys(name)[0], x**2 if walk == "gather" else x + 1)


def test_cancelled_between_two_parts_everything_goes() -> None:
    rig = Rig()
    rig.warm()
    rig.start("a", "store", np.arange(40))
    rig.start("b", "gather", np.arange(40))
    rig.turn(4)
    assert rig.allocator.num_held > 0
    rig.conductor.send("worker/0", CancelRequest("a"))
    rig.conductor.send("worker/0", CancelRequest("b"))
    rig.turn()
    assert rig.worker.stats()["active_walks"] == rig.worker.stats()["ready_units"] == rig.allocator.num_held == 0


def test_a_deadline_ends_a_walk_between_two_parts() -> None:
    rig = Rig()
    rig.start("late", "gather", np.arange(60), deadline_ns=20 * ITEM_NS)
    rig.start("best so far", "gather", np.arange(60), deadline_ns=20 * ITEM_NS, anytime=True)
    rig.run()
    late = rig.ends["late"]
    assert isinstance(late, WalkFailed)
    assert late.code == "DEADLINE_EXCEEDED"
    assert isinstance(rig.ends["best so far"], WalkDone)


@pytest.mark.parametrize("pages", [8, 11, 17])
def test_pages_that_run_out_between_two_parts_are_waited_for(pages: int) -> None:
    rig, alone = Rig(pages=pages), Rig()
    requests = {f"r{number}": np.arange(2 + number, dtype=np.float32) for number in range(7)}
    for each in (rig, alone):
        each.warm() if each is alone else None
        for name, x in requests.items():
            each.start(name, "store", x, steps=2)
        each.run()
    for name in requests:
        assert isinstance(rig.ends[name], WalkDone), rig.ends[name]
        np.testing.assert_allclose(rig.ys(name), alone.ys(name))


def test_a_call_that_never_fits_is_refused_after_some_of_its_parts() -> None:
    rig = Rig(pages=6)
    rig.start("too many", "store", np.arange(30))
    rig.start("few", "store", np.arange(5))
    rig.run()
    refused = rig.ends["too many"]
    assert isinstance(refused, WalkFailed)
    assert refused.code == "INVALID_ARGUMENT"
    assert "not fit into this worker's pages" in refused.message
    assert isinstance(rig.ends["few"], WalkDone)


# --- steps over the bound --------------------------------------------------------------------------------------------


def test_steps_over_the_bound_are_counted_by_node_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(max_step_ms=0.5)
    with caplog.at_level(logging.WARNING, logger="mstar_rt.worker.overruns"):
        for number in range(5):
            rig.start(f"r{number}", "gather", np.arange(3))
            rig.run()
    assert 8 <= rig.worker.stats()["over_bound/m/gather"] <= 15
    (record,) = caplog.records
    assert "node gather of model m took 1.0 ms, over max_step_ms = 0.5: a single item takes that long" in record.message


def test_a_step_in_which_the_thread_hardly_ran_was_held_up(caplog: pytest.LogCaptureFixture) -> None:
    rig, thread = Rig(max_step_ms=0.5), ManualClock()
    rig.worker._overruns = Overruns(500_000, thread.now_ns)
    with caplog.at_level(logging.WARNING, logger="mstar_rt.worker.overruns"):
        for number in range(5):
            rig.start(f"r{number}", "gather", np.arange(3))
            rig.run()
    (record,) = caplog.records
    assert "over max_step_ms = 0.5, of which it ran for 0.0 ms: not its size is to blame" in record.message
