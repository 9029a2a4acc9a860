"""Random walks, cut at random and run with every message and firing in random order, against the uncut run."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.graph import WalkGraph
from mstar_rt.program import Firing, Program, Progress, WalkRun, compile_walk
from tests.program.evaluation import Evaluation, Provenance
from tests.program.parts import Parts, frozen
from tests.program.random_walks import PARAMS, WALKS, walk_graphs

QUICK = settings(WALKS, max_examples=100)
THOROUGH = settings(QUICK, max_examples=300)
TIMES = st.fixed_dictionaries({name: st.integers(1, limit) for name, limit in PARAMS.items()})
PREFER = st.sampled_from(["any", "messages", "firings", "late"])
SEEDS = st.integers(0, 2**32)


def parts_of(
    program: Program, num_ranks: int, times: dict[str, int], rng: random.Random, provenance: Provenance, prefer: str
) -> Parts:
    def complete(run: WalkRun, firing: Firing) -> Progress:
        outputs = provenance.run(firing.name, firing.node.outputs, firing.iteration, list(firing.inputs.values()))
        leave = run.program.nodes[firing.node_index].leaves is not None
        return run.complete(firing, outputs, leave and provenance.leave(firing.name, firing.iteration, outputs))

    node_ranks = [rng.randrange(num_ranks) for _ in program.nodes]
    return Parts(program, node_ranks, times, complete, rng, prefer)


def inputs_of(program: Program) -> dict[str, Any]:
    return {name: ("input", name) for name, _ in program.inputs}


@THOROUGH
@given(walk_graphs(), TIMES, SEEDS, st.integers(2, 5), PREFER)
def test_the_parts_together_are_the_walk(
    graph: WalkGraph, times: dict[str, int], seed: int, num_ranks: int, prefer: str
) -> None:
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    whole = parts_of(program, 1, times, rng, provenance, "any")
    cut = parts_of(program, num_ranks, times, rng, provenance, prefer)
    for parts in (whole, cut):
        parts.start(inputs_of(program))
        parts.run()
        assert parts.finished == set(parts.runs)
        assert parts.num_held == 0
    assert not whole.num_sent
    assert cut.fired == whole.fired
    assert cut.emitted == whole.emitted
    assert {k: frozen(v) for k, v in cut.persisted.items()} == {k: frozen(v) for k, v in whole.persisted.items()}
    assert {k: frozen(v) for k, v in cut.outputs.items()} == {k: frozen(v) for k, v in whole.outputs.items()}
    assert cut.num_iterations == whole.num_iterations


@THOROUGH
@given(walk_graphs(streams=True), TIMES, SEEDS, st.integers(1, 5), PREFER)
def test_streams_give_what_direct_evaluation_gives_on_any_ranks(
    graph: WalkGraph, times: dict[str, int], seed: int, num_ranks: int, prefer: str
) -> None:
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    expected = Evaluation(graph.walk("w"), times, provenance)
    expected.run(inputs_of(program))
    parts = parts_of(program, num_ranks, times, rng, provenance, prefer)
    parts.start(inputs_of(program))
    parts.run()
    assert parts.fired == expected.fired
    assert parts.emitted == expected.emitted
    assert {k: frozen(v) for k, v in parts.persisted.items()} == {k: frozen(v) for k, v in expected.persisted.items()}
    assert parts.finished == set(parts.runs)
    assert parts.num_held == 0


@QUICK
@given(walk_graphs(streams=True), TIMES, SEEDS, st.integers(0, 40), PREFER)
def test_abandoned_parts_take_what_still_comes(
    graph: WalkGraph, times: dict[str, int], seed: int, num_steps: int, prefer: str
) -> None:
    program, rng = compile_walk(graph, "w"), random.Random(seed)
    parts = parts_of(program, 3, times, rng, Provenance(), prefer)
    parts.start(inputs_of(program))
    for _ in range(num_steps):
        if parts.ready or parts.messages:
            parts.step()
    before = parts.emitted.copy()
    for run in parts.runs.values():
        run.abandon()
    assert (parts.num_held, parts.outputs, parts.persisted) == (0, {}, {})
    parts.finished.clear()
    parts.run()
    assert parts.emitted == before
    assert parts.num_held == 0
    assert not parts.finished
