"""Random walks through WalkRun, completed in random order, against a direct recursive evaluation."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.graph import WalkGraph
from mstar_rt.program import Firing, Program, Progress, WalkRun, compile_walk
from tests.program.evaluation import Evaluation, Provenance
from tests.program.random_walks import PARAMS, WALKS, walk_graphs

QUICK = settings(WALKS, max_examples=100)
THOROUGH = settings(QUICK, max_examples=500)
TIMES = st.fixed_dictionaries({name: st.integers(1, limit) for name, limit in PARAMS.items()})


def started(program: Program, times: dict[str, int]) -> tuple[WalkRun, list[Firing], dict[str, Any]]:
    run = WalkRun(program, {name: times[name] for name in program.params})
    inputs = {name: ("input", name) for name, _ in program.inputs}
    return run, run.start(inputs), inputs


def complete(run: WalkRun, firing: Firing, provenance: Provenance) -> Progress:
    outputs = provenance.run(firing.name, firing.node.outputs, firing.iteration, list(firing.inputs.values()))
    leave = run.program.nodes[firing.node_index].leaves is not None
    return run.complete(firing, outputs, leave and provenance.leave(firing.name, firing.iteration, outputs))


def frozen(value: Any) -> Any:
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


@THOROUGH
@given(walk_graphs(), TIMES, st.integers(0, 2**32), st.sampled_from(["any", "oldest", "newest"]))
def test_any_order_gives_what_direct_evaluation_gives(
    graph: WalkGraph, times: dict[str, int], seed: int, policy: str
) -> None:
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    run, ready, inputs = started(program, times)
    expected = Evaluation(graph.walk("w"), times, provenance)
    expected.run(inputs)
    fired: Counter[Any] = Counter((f.name, f.iteration) for f in ready)
    emitted: Counter[Any] = Counter()
    num_finished = 0
    while ready:
        index = {"any": rng.randrange(len(ready)), "oldest": 0, "newest": len(ready) - 1}[policy]
        progress = complete(run, ready.pop(index), provenance)
        emitted.update((e.name, e.iteration, frozen(e.value)) for e in progress.emitted)
        fired.update((f.name, f.iteration) for f in progress.ready)
        ready += progress.ready
        num_finished += progress.finished
        assert progress.finished == (not ready and run.in_flight == 0)
        assert run.in_flight == len(ready)
    assert fired == expected.fired
    assert emitted == expected.emitted
    assert num_finished == 1
    assert {k: frozen(v) for k, v in run.persisted.items()} == {k: frozen(v) for k, v in expected.persisted.items()}
    assert run.num_held == 0


@QUICK
@given(walk_graphs(), TIMES, st.integers(0, 2**32))
def test_outputs_are_the_last_emissions(graph: WalkGraph, times: dict[str, int], seed: int) -> None:
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    run, ready, _ = started(program, times)
    last: dict[str, tuple[tuple[int, ...], Any]] = {}
    while ready:
        progress = complete(run, ready.pop(rng.randrange(len(ready))), provenance)
        ready += progress.ready
        for e in progress.emitted:
            if e.name not in last or e.iteration > last[e.name][0]:
                last[e.name] = (e.iteration, e.value)
    assert run.outputs == {name: value for name, (_, value) in last.items()}
    assert sum(run.num_iterations.values()) >= len(program.loops)


@QUICK
@given(walk_graphs(), TIMES, st.integers(0, 2**32), st.integers(0, 40))
def test_abandon_at_any_moment_yields_nothing_afterwards(
    graph: WalkGraph, times: dict[str, int], seed: int, num_before: int
) -> None:
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    run, ready, _ = started(program, times)
    for _ in range(num_before):
        if len(ready) > 1:
            ready += complete(run, ready.pop(rng.randrange(len(ready))), provenance).ready
    run.abandon()
    assert (run.num_held, run.outputs, run.persisted) == (0, {}, {})
    while ready:
        progress = complete(run, ready.pop(rng.randrange(len(ready))), provenance)
        assert (progress.ready, progress.emitted, progress.finished) == ([], [], False)
    assert (run.in_flight, run.num_held) == (0, 0)


@QUICK
@given(walk_graphs())
def test_values_flow_forwards_except_by_carries(graph: WalkGraph) -> None:
    program = compile_walk(graph, "w")
    for edge in program.edges:
        assert edge.source is None or edge.source < edge.target or "next" in edge.kinds
    read = {(edge.target, edge.target_slot) for edge in program.edges}
    assert read == {(node.index, slot) for node in program.nodes for slot in node.slots}
    assert [node.order for node in program.nodes] == list(range(len(program.nodes)))
