"""The parts of a program by example: what each rank runs, what it sends, and when it is done."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from mstar_rt.errors import InvalidArgument
from mstar_rt.graph import DynamicLoop, GraphNode, Loop, Parallel, Section, Sequential, Walk, WalkGraph, bind_walk
from mstar_rt.program import Emission, Program, Send, WalkRun, compile_walk, cut, ranks_of

START = GraphNode("start", ("frames",), ("x",))
STEP = GraphNode("step", ("x",), ("x",))
LOOK = GraphNode("look", ("x",), ("y",))
MIX = GraphNode("mix", ("x", "prefix"), ("y",))


def program_of(body: Section | GraphNode, **walk: Any) -> Program:
    made = Walk("w", body, **walk)
    nodes = {placed.use.node.name: placed.use.node for placed in bind_walk(made).uses}
    return compile_walk(WalkGraph(tuple(nodes.values()), (made,)), "w")


def test_ranks_and_inputs_of_the_parts() -> None:
    program = program_of(Sequential(START, LOOK, MIX.bind(outputs={"y": "z"})), emit=("y", "z"))
    assert ranks_of([2, 0, 2]) == (0, 2)
    assert cut(program, [1, 1, 1], 1) is program
    parts = {rank: cut(program, [2, 0, 2], rank) for rank in (0, 2)}
    assert {rank: [name for name, _ in part.inputs] for rank, part in parts.items()} == {0: [], 2: ["frames", "prefix"]}
    assert {rank: part.num_items for rank, part in parts.items()} == {0: 1, 2: 2}
    with pytest.raises(InvalidArgument, match="walk 'w' has no input 'prefix'"):
        WalkRun(parts[0]).start({"prefix": 0})
    with pytest.raises(AssertionError, match="rank 1 runs nothing"):
        cut(program, [2, 0, 2], 1)


def test_a_value_goes_once_to_every_rank_and_port_that_reads_it() -> None:
    body = Sequential(
        START, Parallel(LOOK, LOOK.bind(outputs={"y": "z"}, alias="again"), STEP), MIX.bind(outputs={"y": "mixed"})
    )
    program = program_of(body, emit=("y", "z", "mixed"))
    run = WalkRun(cut(program, [0, 1, 1, 2, 0], 0))
    (start,) = run.start({"frames": 0, "prefix": 0})
    progress = run.complete(start, {"x": "value"})
    port = program.nodes[0].outputs[0][1]
    assert progress.sends == [Send(1, "value", port, (), "value"), Send(2, "value", port, (), "value")]
    assert not progress.finished


def test_a_loop_between_two_ranks() -> None:
    """`step` carries to itself on rank 0 and may leave, `look` on rank 1 reads every iteration."""
    program = program_of(
        DynamicLoop("turn", Sequential(STEP, LOOK), 9, carry={"x": "x"}, collect={"y": "ys"}, leave="step"),
        emit=("ys",),
    )
    here, there = (WalkRun(cut(program, [0, 1], rank)) for rank in (0, 1))
    (step,) = here.start({"x": 0})
    assert there.start({}) == []
    first = here.complete(step, {"x": 1})
    assert [(s.kind, s.tag, s.value, s.flag) for s in first.sends] == [
        ("decision", (0,), None, False),
        ("value", (0,), 1, False),
    ]
    last = here.complete(first.ready[0], {"x": 2}, leave=True)
    assert [(s.kind, s.tag, s.value, s.flag) for s in last.sends] == [
        ("decision", (1,), None, True),
        ("value", (1,), 2, False),
    ]
    assert (last.finished, here.num_held) == (True, 0)
    looks = []
    for send in reversed(first.sends + last.sends):  # the end of the loop is known before its beginning
        looks += there.receive(send.kind, send.index, send.tag, send.value, send.flag).ready
    assert [look.iteration for look in looks] == [(1,), (0,)]
    assert there.complete(looks[0], {"y": "late"}).emitted == []
    progress = there.complete(looks[1], {"y": "early"})
    assert (progress.emitted, progress.finished) == ([Emission("ys", (), ["early", "late"])], True)
    assert (here.num_iterations, there.num_iterations, there.num_held) == ({"turn": 2}, {"turn": 2}, 0)


def test_a_part_waits_for_the_last_decision_even_if_its_nodes_are_done() -> None:
    program = program_of(
        DynamicLoop("turn", Sequential(LOOK, STEP), 9, carry={"x": "x"}, leave="step"), emit=("y",), persist=("x",)
    )
    run = WalkRun(cut(program, [1, 0], 1))
    (look,) = run.start({"x": 0})
    assert not run.complete(look, {"y": 0}).finished
    assert run.num_held > 0
    progress = run.receive("decision", 0, (0,), flag=True)
    assert progress.finished
    assert run.num_held == 0


def test_a_rank_takes_part_in_loops_that_it_has_nothing_but_an_inner_loop_of() -> None:
    inner = Loop("inner", MIX, 2)
    outer = DynamicLoop("outer", Sequential(STEP, inner), 5, carry={"x": "x"}, leave="step")
    program = program_of(outer, emit=("y",))
    part = cut(program, [0, 1], 1)
    assert [(loop.name, loop.num_items) for loop in part.loops] == [("outer", 2), ("inner", 1)]
    assert [(loop.name, loop.num_items) for loop in cut(program, [0, 1], 0).loops] == [("outer", 1), ("inner", 0)]
    run = WalkRun(part)
    prefix = type("Tensor", (), {})()
    ref = weakref.ref(prefix)
    assert run.start({"prefix": prefix}) == []
    del prefix
    for turn in range(2):
        run.receive("decision", 0, (turn,), flag=turn == 1)
        port = program.nodes[0].outputs[0][1]
        for mix in run.receive("value", port, (turn,), turn).ready:
            assert ref() is not None
            progress = run.complete(mix, {"y": 0})
        del mix
    gc.collect()
    assert ref() is None, "the invariant goes with the loop"
    assert (progress.finished, run.num_iterations) == (True, {"outer": 2, "inner": 4})


def test_a_relay_runs_where_its_value_is_read() -> None:
    """The initial value of an inner carry comes from outside both loops and crosses once, not once per iteration."""
    inner = Loop("inner", STEP, 2, carry={"x": "x"})
    body = Sequential(START, Loop("outer", Sequential(inner, LOOK), 3))
    program = program_of(body, emit=("y",))
    here, there = (WalkRun(cut(program, [0, 1, 1], rank)) for rank in (0, 1))
    (start,) = here.start({"frames": 0})
    progress = here.complete(start, {"x": 7})
    (send,) = progress.sends
    assert (progress.finished, there.start({})) == (True, [])
    ready = there.receive(send.kind, send.index, send.tag, send.value).ready
    assert [(f.iteration, f.inputs) for f in ready] == [((turn, 0), {"x": 7}) for turn in range(3)]


def test_what_is_received_is_not_sent_on_and_comes_after_the_start() -> None:
    program = program_of(Sequential(START, LOOK), emit=("y",))
    run = WalkRun(cut(program, [0, 1], 1))
    port = program.nodes[0].outputs[0][1]
    with pytest.raises(AssertionError, match="starts before it receives"):
        run.receive("value", port, (), 1)
    run.start({})
    progress = run.receive("value", port, (), 1)
    assert (progress.sends, [f.name for f in progress.ready]) == ([], ["look"])
    run.abandon()
    assert run.receive("value", port, (), 1).ready == []
    assert run.num_held == 0
