"""Sequences of a cache follow the values: which edges bring them, and what is refused because none does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mstar_rt.graph import (
    DynamicLoop,
    FixedChunkPolicy,
    GraphEdge,
    GraphNode,
    Loop,
    Parallel,
    Section,
    Sequential,
    StreamChunk,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
    bind_walk,
)
from mstar_rt.program import (
    Firing,
    Program,
    Progress,
    Send,
    WalkRun,
    check_caches,
    compile_walk,
    crossings,
    siblings_of,
)
from tests.program.evaluation import Provenance
from tests.program.parts import Parts
from tests.program.random_walks import PARAMS, WALKS, unordered, walk_graphs

TIMES = st.fixed_dictionaries({name: st.integers(1, limit) for name, limit in PARAMS.items()})


def kv(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> GraphNode:
    return GraphNode(name, inputs, outputs, engine="kv_cache", cache="memory")


PREFILL = kv("prefill", ("prompt",), ("token",))
DECODE = kv("decode", ("token",), ("hidden",))
SAMPLE = GraphNode("sample", ("hidden",), ("token",))
PLAIN = GraphNode("plain", ("token",), ("token",))


def program_of(walk: Walk) -> Program:
    nodes = {placed.use.node.name: placed.use.node for placed in bind_walk(walk).uses}
    return compile_walk(unordered(tuple(nodes.values()), walk), walk.name)


def generate(*between: GraphNode, decode: Section | GraphNode = DECODE) -> Walk:
    loop = DynamicLoop("turn", Sequential(decode, SAMPLE), 5, carry={"token": "token"}, leave="sample")
    return Walk("generate", Sequential(PREFILL, *between, loop), emit=("sample.token",))


def test_crossings_name_both_ends_and_the_cache_that_goes_along() -> None:
    program = program_of(generate())
    found = {
        (program.nodes[c.source].name, c.source_slot, program.nodes[c.target].name, c.kinds, c.cache)
        for c in crossings(program, [0, 1, 2])
    }
    assert found == {
        ("prefill", "token", "decode", ("enter",), "memory"),
        ("decode", "hidden", "sample", (), None),
        ("sample", "token", "decode", ("next",), None),
    }
    assert {(c.from_rank, c.to_rank) for c in crossings(program, [0, 1, 1])} == {(0, 1)}
    assert crossings(program, [3, 3, 3]) == ()


def test_a_node_between_two_of_the_cache_does_not_bring_its_sequences() -> None:
    assert check_caches(program_of(generate()), [0, 1, 1]) == []
    program = program_of(generate(PLAIN))
    assert check_caches(program, [0, 0, 0, 1]) == check_caches(program, [0, 2, 0, 1]) == []
    (reason,) = check_caches(program, [0, 1, 1, 1])
    assert reason.startswith("node 'decode' on rank 1 attends over cache 'memory' after 'prefill' on rank 0, but reads")


def test_what_comes_an_iteration_later_is_too_late() -> None:
    """`second` reads `first` of the iteration before and, through `plain`, that of its own."""
    first, second = kv("first", ("x",), ("y",)), kv("second", ("z", "before"), ("x",))
    plain = GraphNode("plain", ("y",), ("z",))
    loop = Loop("turn", Sequential(first, plain, second), 3, carry={"x": "x", "before": "y"})
    program = program_of(Walk("w", loop, emit=("x",)))
    assert [program.nodes[i].name for i in range(3)] == ["first", "plain", "second"]
    assert len(check_caches(program, [0, 0, 1])) == 1
    assert check_caches(program, [0, 1, 0]) == []


def test_what_enters_a_loop_is_not_there_for_iterations_that_do_not_wait_for_the_first() -> None:
    """`reader` gets the token of `prefill` in iteration 0 and afterwards that of `plain`, which overtakes it unless it
    reads what `reader` gave."""
    reader = kv("reader", ("token",), ("seen",))
    for slots, num_reasons in ((("start",), 1), (("start", "seen"), 0)):
        plain = GraphNode("plain", slots, ("token",))
        loop = Loop("turn", Sequential(reader, plain), 3, carry={"token": "token"})
        body = Sequential(PREFILL, loop)
        edges = (GraphEdge("prefill.token", "plain.start"),)
        program = program_of(Walk("w", body, emit=("seen",), edges=edges))
        assert len(check_caches(program, [0, 1, 2])) == num_reasons


GIVE = kv("give", ("x",), ("y",))
PASS_ON = GraphNode("pass", ("y",), ("z",))
TAKE = kv("take", ("y", "before"), ("x",))


@pytest.mark.parametrize(
    ("take", "carry", "num_reasons"),
    [
        (TAKE, {"before": "z"}, 1),  # iteration v + 1 of `take` may overtake v, which has not got what v gave yet
        (TAKE, {"before": "z", "x": "x"}, 0),  # every iteration follows on the one before
        (TAKE.bind({"y": "last"}), {"last": "y", "before": "again", "held": "z"}, 1),  # one and two iterations later
        (TAKE.bind({"y": "last"}), {"last": "y", "before": "z"}, 0),  # both one iteration later
    ],
)
def test_iterations_that_overtake_one_another(take: Any, carry: dict[str, str], num_reasons: int) -> None:
    parts: list[Any] = [GIVE, PASS_ON, take]
    if "held" in carry:
        parts.insert(2, GraphNode("more", ("held",), ("again",)))
    program = program_of(Walk("w", Loop("turn", Sequential(*parts), 4, carry=carry), emit=("x",)))
    assert len(check_caches(program, [0, *[2] * (len(parts) - 2), 1])) == num_reasons


@pytest.mark.parametrize(("end", "num_reasons"), [("last", 1), ("all", 0)])
def test_the_last_value_of_a_map_does_not_wait_for_the_others(end: str, num_reasons: int) -> None:
    """`take` reads all that `pass` made of it."""
    loop = Loop("each", Sequential(GIVE, PASS_ON), 4, collect={"z": "before", "y": "ys"})
    take = TAKE.bind({"y": "ys" if end == "all" else "y"})
    emit = ("x", "ys") if end == "last" else ("x",)
    program = program_of(Walk("w", Sequential(loop, take), emit=emit))
    assert len(check_caches(program, [0, 2, 1])) == num_reasons


def test_branches_do_not_need_each_others_sequences() -> None:
    branches = Parallel(
        DECODE.bind(outputs={"hidden": "h1"}, alias="cond"), DECODE.bind(outputs={"hidden": "h2"}, alias="uncond")
    )
    mix = GraphNode("mix", ("h1", "h2"), ("token",))
    walk = Walk("w", Loop("turn", Sequential(branches, mix), 3, carry={"token": "token"}), emit=("mix.token",))
    program = program_of(walk)
    assert siblings_of(walk) == {frozenset(("cond", "uncond"))}
    assert len(check_caches(program, [0, 1, 0])) == 2
    assert check_caches(program, [0, 1, 0], siblings_of(walk)) == []


def test_a_stream_does_not_bring_sequences() -> None:
    reader = kv("reader", ("tokens",), ("sound",))
    body = Sequential(Loop("turn", DECODE, 4), StreamLoop("speak", reader))
    edge = StreamingGraphEdge("decode.hidden", "reader.tokens", FixedChunkPolicy(2))
    program = program_of(Walk("w", body, emit=("sound",), edges=(edge,)))
    assert [c.cache for c in crossings(program, [0, 1])] == [None]
    assert [c.kinds for c in crossings(program, [0, 1])] == [("stream",)]
    assert len(check_caches(program, [0, 1])) == 1


@pytest.mark.parametrize(("node_ranks", "moved"), [([0, 1, 1], 1), ([0, 0, 1], 0), ([0, 1, 0], 1)])
def test_sequences_go_with_the_values_that_need_them(node_ranks: list[int], moved: int) -> None:
    """Prefill apart: once. Sampling apart: never, as no node of the cache is there."""
    held = Holders(program_of(generate()), node_ranks, random.Random(0))
    held.run({"prompt": 0}, {})
    assert held.num_moves == moved


@dataclass
class Holders:
    """Which rank has which node's writes to the cache, if sequences go along as the sends say."""

    program: Program
    node_ranks: list[int]
    rng: random.Random
    provenance: Provenance = field(default_factory=Provenance)
    written: dict[int, set[Any]] = field(default_factory=dict)  # rank -> (use, iteration)
    needed: dict[Any, frozenset[Any]] = field(default_factory=dict)  # history -> the writes that it follows from
    num_moves: int = 0

    def run(self, inputs: dict[str, Any], times: dict[str, int]) -> None:
        parts = _MovingParts(self.program, self.node_ranks, times, self._complete, self.rng, holders=self)
        parts.start(inputs)
        parts.run()
        assert parts.finished == set(self.node_ranks)

    def _complete(self, run: WalkRun, firing: Firing) -> Progress:
        read = list(firing.inputs.values())
        follows: frozenset[Any] = frozenset().union(*(self._follows(value) for value in read))
        rank = self.node_ranks[firing.node_index]
        if firing.node.cache is not None:
            here = self.written.setdefault(rank, set())
            assert follows <= here, f"{firing.name} {firing.iteration} lacks {follows - here}"
            here.add((firing.name, firing.iteration))
            follows |= {(firing.name, firing.iteration)}
        outputs = self.provenance.run(firing.name, firing.node.outputs, firing.iteration, read)
        self.needed |= dict.fromkeys(outputs.values(), follows)
        leave = run.program.nodes[firing.node_index].leaves is not None
        return run.complete(firing, outputs, leave and self.provenance.leave(firing.name, firing.iteration, outputs))

    def _follows(self, value: Any) -> frozenset[Any]:
        if isinstance(value, list | StreamChunk):
            items = value.items if isinstance(value, StreamChunk) else value
            return frozenset().union(*(self._follows(item) for item in items))
        return self.needed.get(value, frozenset())


@dataclass
class _MovingParts(Parts):
    holders: Any = None

    def _add(self, rank: int, progress: Progress) -> None:
        written = self.holders.written.setdefault(rank, set())
        for send in progress.sends:
            send.value = (send.value, frozenset(written) if send.moves else frozenset())
        super()._add(rank, progress)

    def _receive(self, sender: int, send: Send) -> None:
        send.value, brought = send.value
        self.holders.written.setdefault(send.rank, set()).update(brought)
        self.holders.num_moves += bool(send.moves)
        super()._receive(sender, send)


@settings(WALKS, max_examples=200)
@given(walk_graphs(caches=True), TIMES, st.integers(0, 2**32), st.booleans())
def test_what_is_not_refused_finds_all_sequences(
    graph: WalkGraph, times: dict[str, int], seed: int, together: bool
) -> None:
    """`together`: most nodes of the cache on one rank, as in placements that make sense."""
    program, rng = compile_walk(graph, "w"), random.Random(seed)
    node_ranks = [rng.randrange(3) for _ in program.nodes]
    if together:
        node_ranks = [0 if n.node.cache and rng.random() < 0.8 else r for n, r in zip(program.nodes, node_ranks)]
    assume(len({r for n, r in zip(program.nodes, node_ranks) if n.node.cache}) > 1)
    assume(check_caches(program, node_ranks) == [])
    Holders(program, node_ranks, rng).run({name: ("input", name) for name, _ in program.inputs}, times)
