"""WalkRun by example: loops inside loops, early exits, what runs at the same time, memory, errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mstar_rt.errors import Internal, InvalidArgument
from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Parallel, Sequential, Walk, WalkGraph, bind_walk
from mstar_rt.program import Emission, Firing, WalkRun, compile_walk

Compute = Callable[[Firing], Any]


def run_of(body: Any, times: Mapping[str, int] | None = None, **walk: Any) -> WalkRun:
    walk_made = Walk("w", body, **walk)
    nodes = {placed.use.node.name: placed.use.node for placed in bind_walk(walk_made).uses}
    return WalkRun(compile_walk(WalkGraph(tuple(nodes.values()), (walk_made,)), "w"), times)


def drive(run: WalkRun, ready: list[Firing], compute: Compute, leave: Any = None) -> list[Emission]:
    """Complete everything, oldest first; `leave(firing)` says when a node leaves."""
    emitted: list[Emission] = []
    while ready:
        firing = ready.pop(0)
        outputs = compute(firing)
        progress = run.complete(firing, outputs, leave=bool(leave and leave(firing)))
        ready += progress.ready
        emitted += progress.emitted
    assert progress.finished
    return emitted


STEP = GraphNode("step", ("x",), ("x",))
LOOK = GraphNode("look", ("x",), ("y",))


def add_one(firing: Firing) -> dict[str, Any]:
    return dict.fromkeys(firing.node.outputs, firing.inputs["x"] + 1)


def test_loop_runs_as_often_as_the_request_says() -> None:
    for times in (1, 2, 7):
        run = run_of(Loop("turn", STEP, "n", 7, carry={"x": "x"}), {"n": times}, emit=("x",), persist=("x",))
        emitted = drive(run, run.start({"x": 0}), add_one)
        assert [(e.name, e.iteration, e.value) for e in emitted] == [("x", (v,), v + 1) for v in range(times)]
        assert run.persisted == run.outputs == {"x": times}
        assert run.num_iterations == {"turn": times}


def test_dynamic_loop_ends_when_its_node_says_so_or_at_its_bound() -> None:
    loop = DynamicLoop("turn", STEP, "n", 7, carry={"x": "x"}, collect={"x": "xs"}, leave="step")
    for leave_at, last in ((0, 0), (3, 3), (99, 6)):
        run = run_of(Sequential(loop, LOOK), {"n": 7}, emit=("y", "xs"))
        drive(run, run.start({"x": 0}), add_one, leave=lambda f, at=leave_at: f.iteration == (at,))
        assert run.outputs == {"y": last + 2, "xs": [v + 1 for v in range(last + 1)]}
        assert run.num_held == 0


def test_cross_entropy_method_as_a_walk() -> None:
    """An outer loop that may stop early around an inner one that does, with an initial value from far outside."""
    start = GraphNode("start", ("frames",), ("latent0", "mean"))
    sample = GraphNode("sample", ("mean",), ("actions",))
    predict = GraphNode("predict", ("latent", "actions"), ("latent",))
    score = GraphNode("score", ("latent", "goal"), ("cost",))
    refit = GraphNode("refit", ("cost", "actions", "mean"), ("mean", "plan"))
    imagine = DynamicLoop("imagine", predict, "horizon", 8, carry={"latent": "latent"}, leave="predict")
    cem = DynamicLoop(
        "cem", Sequential(sample, imagine, score, refit), "rounds", 9, carry={"mean": "mean"}, leave="refit"
    )
    body = Sequential(start.bind(outputs={"latent0": "latent"}), cem)
    run = run_of(body, {"horizon": 4, "rounds": 9}, emit=("plan",), persist=("refit.mean",))
    compute: dict[str, Callable[..., dict[str, Any]]] = {
        "start": lambda frames: {"latent0": 100, "mean": 0},
        "sample": lambda mean: {"actions": mean + 1},
        "predict": lambda latent, actions: {"latent": latent + actions},
        "score": lambda latent, goal: {"cost": goal - latent},
        "refit": lambda cost, actions, mean: {"mean": actions, "plan": (mean, cost)},
    }
    leaves: dict[str, Callable[[tuple[int, ...]], bool]] = {
        "predict": lambda iteration: iteration[1] == iteration[0],
        "refit": lambda iteration: iteration == (2,),
    }
    emitted = drive(
        run,
        run.start({"frames": None, "goal": 1000}),
        lambda firing: compute[firing.name](**firing.inputs),
        leave=lambda f: f.name in leaves and leaves[f.name](f.iteration),
    )
    # Round v imagines v + 1 steps with actions v + 1, always from latent 100.
    assert [(e.iteration, e.value) for e in emitted] == [
        ((0,), (0, 1000 - 101)),
        ((1,), (1, 1000 - 104)),
        ((2,), (2, 1000 - 109)),
    ]
    assert run.persisted == {"mean": 3}
    assert run.num_iterations == {"cem": 3, "imagine": 1 + 2 + 3}


def test_plain_loop_does_not_wait_for_the_rest_of_an_iteration() -> None:
    run = run_of(Loop("turn", Sequential(STEP, LOOK), 3, carry={"x": "x"}), emit=("y",))
    (first,) = run.start({"x": 0})
    ready = run.complete(first, {"x": 1}).ready
    assert {(f.name, f.iteration) for f in ready} == {("step", (1,)), ("look", (0,))}


def test_dynamic_loop_waits_for_the_node_that_may_leave_and_for_nothing_else() -> None:
    other = GraphNode("other", ("x",), ("z",))
    loop = DynamicLoop("turn", Sequential(STEP, Parallel(LOOK, other)), 3, carry={"x": "x"}, leave="look")
    run = run_of(loop, emit=("y", "z"))
    (first,) = run.start({"x": 0})
    look, rest = run.complete(first, {"x": 1}).ready
    assert run.complete(rest, {"z": 0}).ready == []
    (following,) = run.complete(look, {"y": 0}).ready
    assert (following.name, following.iteration, following.inputs) == ("step", (1,), {"x": 1})
    look, rest = run.complete(following, {"x": 2}).ready
    assert not run.complete(look, {"y": 0}, leave=True).finished
    assert run.complete(rest, {"z": 0}).finished


def test_loop_that_carries_nothing_is_a_map() -> None:
    run = run_of(Loop("each", LOOK, 4, collect={"y": "ys"}), emit=("ys",))
    ready = run.start({"x": 5})
    assert [f.iteration for f in ready] == [(0,), (1,), (2,), (3,)]
    for firing in reversed(ready):
        progress = run.complete(firing, {"y": firing.iteration[0] * 10})
    assert progress.emitted == [Emission("ys", (), [0, 10, 20, 30])]


def test_list_waits_for_late_iterations_of_a_dynamic_loop() -> None:
    """The value of the last iteration that the bound allows comes before an earlier one and before the verdict."""
    free = GraphNode("free", ("z",), ("y",))
    loop = DynamicLoop("turn", Parallel(STEP, free), 2, carry={"x": "x"}, collect={"y": "ys"}, leave="step")
    run = run_of(loop, emit=("ys",), persist=("x",))
    step, early = run.start({"x": 0, "z": 0})
    late, following = run.complete(step, {"x": 1}).ready
    assert (late.name, late.iteration) == ("free", (1,))
    assert run.complete(late, {"y": "late"}).emitted == []
    assert run.complete(early, {"y": "early"}).emitted == [Emission("ys", (), ["early", "late"])]
    assert run.complete(following, {"x": 2}).finished


def test_map_in_a_dynamic_loop_opens_one_iteration_after_another() -> None:
    stop = GraphNode("stop", ("x",), ("verdict",))
    body = Sequential(stop, Loop("inner", LOOK, 2))
    run = run_of(DynamicLoop("each", body, 3, leave="stop"), emit=("y",))
    ready = run.start({"x": 0})
    assert [(f.name, f.iteration) for f in ready] == [("stop", (0,)), ("look", (0, 0)), ("look", (0, 1))]
    progress = run.complete(ready[0], {"verdict": 0})
    assert [(f.name, f.iteration) for f in progress.ready] == [("stop", (1,)), ("look", (1, 0)), ("look", (1, 1))]
    assert run.complete(progress.ready[0], {"verdict": 0}, leave=True).ready == []


def test_none_is_a_value_like_any_other() -> None:
    run = run_of(Sequential(STEP, LOOK), emit=("y",), persist=("y",))
    emitted = drive(run, run.start({"x": None}), lambda f: dict.fromkeys(f.node.outputs))
    assert emitted == [Emission("y", (), None)]
    assert run.persisted == {"y": None}


def test_order_and_node_come_with_a_firing() -> None:
    run = run_of(Sequential(STEP.bind(alias="first"), LOOK), emit=("y",))
    (first,) = run.start({"x": 1})
    assert (first.name, first.node, first.order, first.iteration) == ("first", STEP, 0, ())
    (second,) = run.complete(first, {"x": 2}).ready
    assert (second.node_index, second.order, second.inputs) == (1, 1, {"x": 2})


class Tensor:
    """Something whose end can be watched."""


def test_a_finished_iteration_leaves_nothing_behind() -> None:
    run = run_of(Sequential(Loop("turn", STEP, 500, carry={"x": "x"}), LOOK), emit=("y",))
    value = Tensor()
    (firing,) = run.start({"x": value})
    alive = [weakref.ref(value)]
    del value
    for turn in range(500):
        output = Tensor()
        alive.append(weakref.ref(output))
        (firing,) = run.complete(firing, {"x": output}).ready
        del output
        assert run.num_held <= 4
        assert [ref() is not None for ref in alive] == [False] * (turn + 1) + [True]
    assert firing.name == "look"


def test_an_invariant_lives_as_long_as_the_loop_that_reads_it() -> None:
    step = GraphNode("step", ("x", "prefix"), ("x",))
    body = Sequential(Loop("turn", step, 3, carry={"x": "x"}), LOOK)
    run = run_of(body, emit=("y",))
    prefix = Tensor()
    ref = weakref.ref(prefix)
    (firing,) = run.start({"x": 0, "prefix": prefix})
    del prefix
    for _ in range(3):
        assert ref() is not None
        (firing,) = run.complete(firing, {"x": 0}).ready
    gc.collect()
    assert ref() is None


def test_abandon_drops_values_and_accepts_what_was_in_flight() -> None:
    run = run_of(Parallel(STEP, LOOK), emit=("x", "y"), persist=("x",))
    step, look = run.start({"x": 0})
    run.complete(step, {"x": 1})
    kept = run.persisted
    assert run.in_flight == 1
    run.abandon()
    assert (run.outputs, run.persisted, run.num_held) == ({}, {}, 0)
    assert kept == {"x": 1}
    progress = run.complete(look, {"y": 1}, leave=True)
    assert (progress.ready, progress.emitted, progress.finished, run.in_flight) == ([], [], False, 0)


def test_bad_times_are_refused() -> None:
    loop = Loop("turn", STEP, "n", 7, carry={"x": "x"})
    for times, message in (
        ({}, "walk 'w' needs the parameter 'n', an integer from 1 to 7"),
        ({"n": 0}, "walk 'w' has n = 0, expected an integer from 1 to 7"),
        ({"n": 8}, "walk 'w' has n = 8, expected an integer from 1 to 7"),
        ({"n": 2.0}, "walk 'w' has n = 2.0, expected an integer"),
        ({"n": True}, "walk 'w' has n = True, expected an integer"),
        ({"n": 2, "m": 2}, "walk 'w' has no loop parameter 'm', known: n"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            run_of(loop, times, emit=("x",))  # type: ignore[arg-type]


def test_bad_inputs_are_refused_before_anything_starts() -> None:
    run = run_of(STEP, emit=("x",))
    with pytest.raises(InvalidArgument, match="walk 'w' needs the input 'x', which is missing"):
        run.start({})
    with pytest.raises(InvalidArgument, match="walk 'w' has no input 'xx', did you mean 'x'"):
        run.start({"x": 1, "xx": 1})
    assert len(run.start({"x": 1})) == 1


def test_wrong_outputs_of_a_node_are_an_error_of_the_node() -> None:
    for outputs in ({}, {"y": 1}, {"x": 1, "y": 1}):
        run = run_of(STEP, emit=("x",))
        (firing,) = run.start({"x": 1})
        with pytest.raises(Internal, match=r"node 'step' gave .* in iteration \[\], expected 'x'"):
            run.complete(firing, outputs)
        assert run.complete(firing, {"x": 1}).finished


def test_leaving_is_only_for_the_node_that_the_loop_names() -> None:
    run = run_of(Loop("turn", STEP, 3, carry={"x": "x"}), emit=("x",))
    (firing,) = run.start({"x": 1})
    with pytest.raises(Internal, match="node 'step' said leave, but no DynamicLoop has leave='step'"):
        run.complete(firing, {"x": 1}, leave=True)


def test_completing_twice_or_starting_twice_is_our_bug() -> None:
    run = run_of(STEP, emit=("x",))
    (firing,) = run.start({"x": 1})
    run.complete(firing, {"x": 1})
    with pytest.raises(AssertionError, match="not in flight"):
        run.complete(firing, {"x": 1})
    with pytest.raises(AssertionError, match="starts once"):
        run.start({"x": 1})
