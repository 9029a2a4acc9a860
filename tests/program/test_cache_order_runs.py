"""Uses of a cache that are not refused run in the order of writing, whatever completes first; of those that are
refused, one overtakes another in some run.

Any one or two uses of a random walk stand for those of a cache.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mstar_rt.errors import GraphError
from mstar_rt.graph import (
    BoundUse,
    FixedChunkPolicy,
    GraphNode,
    Loop,
    Parallel,
    Sequential,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)  # fmt: skip
from mstar_rt.graph.cache_order import check_cache_order, siblings_of
from mstar_rt.program import Firing, Program, Progress, WalkRun, compile_walk
from tests.program.evaluation import Evaluation, Provenance
from tests.program.parts import Parts
from tests.program.random_walks import PARAMS, WALKS, walk_graphs

TIMES = st.fixed_dictionaries({name: st.integers(1, limit) for name, limit in PARAMS.items()})
SEEDS = st.integers(0, 2**32)
Run = tuple[str, tuple[int, ...]]
Pair = frozenset[str]


def two_readers() -> WalkGraph:
    """What comes from 'hear' does not wait for 'make', unless both readers are on one rank."""
    make, tick = GraphNode("make", ("x",), ("item",)), GraphNode("tick", ("x",), ("other",))
    read, hear = GraphNode("read", ("items",), ("v",)), GraphNode("hear", ("others",), ("w",))
    last = GraphNode("last", ("w",), ("z",))
    body = Sequential(Loop("turn", Parallel(make, tick), 1), StreamLoop("reading", Parallel(read, hear)), last)
    ends = (("make.item", "read.items"), ("tick.other", "hear.others"))
    edges = tuple(StreamingGraphEdge(*each, FixedChunkPolicy(1)) for each in ends)
    return WalkGraph((make, tick, read, hear, last), (Walk("w", body, emit=("v", "z"), edges=edges),))


def is_refused(graph: WalkGraph, uses: Pair) -> bool:
    """Whether the walk would be refused if `uses`, and no others, were of a cache."""
    bound = graph.bound("w")
    placed = tuple(_of_cache(each, each.use.name in uses) for each in bound.uses)
    try:
        check_cache_order(replace(bound, uses=placed))
    except GraphError:
        return True
    return False


def _of_cache(placed: BoundUse, cached: bool) -> BoundUse:
    node = placed.use.node
    slots = node.inputs, node.outputs or ("unused",)
    node = GraphNode(node.name, *slots, "kv_cache", "memory") if cached else GraphNode(node.name, *slots)
    return replace(placed, use=replace(placed.use, node=node))


def pairs_of(graph: WalkGraph) -> list[Pair]:
    """All single uses and all pairs of uses that are no siblings."""
    names = [placed.use.name for placed in graph.bound("w").uses]
    pairs = [frozenset(pair) for pair in itertools.combinations_with_replacement(names, 2)]
    siblings = siblings_of(graph.walk("w"))
    return [pair for pair in pairs if pair not in siblings]


@dataclass
class Recorded(Parts):
    """In what order runs became ready, and which were ready at the same time."""

    begun: list[Run] = field(default_factory=list)
    at_once: set[Pair] = field(default_factory=set)

    def _add(self, rank: int, progress: Progress) -> None:
        super()._add(rank, progress)
        new = {(firing.name, firing.iteration) for firing in progress.ready}
        self.begun += sorted(new)
        ready = [(firing.name, firing.iteration) for _, firing in self.ready]
        self.at_once |= {frozenset((one[0], other[0])) for one in new for other in ready if one != other}


@settings(WALKS, max_examples=100)
@given(st.booleans().flatmap(lambda streams: walk_graphs(streams=streams)), TIMES, SEEDS, st.integers(1, 5))
@example(two_readers(), {}, 4, 2)
def test_what_is_not_refused_keeps_the_order_of_writing(
    graph: WalkGraph, times: dict[str, int], seed: int, num_ranks: int
) -> None:
    """It becomes ready in that order, and only when what is earlier is complete."""
    program, provenance, rng = compile_walk(graph, "w"), Provenance(), random.Random(seed)
    inputs = {name: ("input", name) for name, _ in program.inputs}
    expected = Evaluation(graph.walk("w"), times, provenance)
    expected.run(inputs)

    def complete(run: WalkRun, firing: Firing) -> Progress:
        outputs = provenance.run(firing.name, firing.node.outputs, firing.iteration, list(firing.inputs.values()))
        leave = run.program.nodes[firing.node_index].leaves is not None
        return run.complete(firing, outputs, leave and provenance.leave(firing.name, firing.iteration, outputs))

    pairs = pairs_of(graph)
    names = sorted(frozenset().union(*pairs))
    for held in rng.sample(names, min(len(names), 4)):
        kept = [pair for pair in pairs if held in pair and not is_refused(graph, pair)]
        node_ranks = [rng.randrange(num_ranks) for _ in program.nodes]
        parts = Recorded(program, node_ranks, times, complete, rng, rng.choice(["any", "late"]), held)
        parts.start(inputs)
        parts.run()
        assert not parts.at_once & set(kept)
        for pair in kept:
            assert [run for run in parts.begun if run[0] in pair] == [run for run in expected.fired if run[0] in pair]


@settings(WALKS, max_examples=60)
@given(walk_graphs(), SEEDS)
def test_of_what_is_refused_one_overtakes_another(graph: WalkGraph, seed: int) -> None:
    rng, program = random.Random(seed), compile_walk(graph, "w")
    refused = [pair for pair in pairs_of(graph) if is_refused(graph, pair)]
    for pair in rng.sample(refused, min(3, len(refused))):
        assert any(overtakes(program, pair, *way, rng) for way in ways_to_run(pair)), pair


def ways_to_run(pair: Pair) -> Iterator[tuple[dict[str, int], int, str]]:
    """Numbers of iterations, also of those that leave early, and what is held back for as long as possible."""
    numbers = [range(limit, 0, -1) for limit in PARAMS.values()]
    for times in itertools.product(*numbers):
        for num_turns in range(1, 5):
            for held in sorted(pair):
                yield dict(zip(PARAMS, times, strict=True)), num_turns, held


def overtakes(
    program: Program, pair: Pair, times: dict[str, int], num_turns: int, held: str, rng: random.Random
) -> bool:
    """Whether one of the pair is ready while another one, or another iteration, is."""
    run = WalkRun(program, {name: times[name] for name in program.params})
    ready = run.start({name: ("input", name) for name, _ in program.inputs})
    while ready:
        if sum(firing.name in pair for firing in ready) > 1:
            return True
        firing = rng.choice([firing for firing in ready if firing.name != held] or ready)
        ready.remove(firing)
        leaves = program.nodes[firing.node_index].leaves is not None and firing.iteration[-1] + 1 >= num_turns
        ready += run.complete(firing, dict.fromkeys(firing.node.outputs), leaves).ready
    return False
