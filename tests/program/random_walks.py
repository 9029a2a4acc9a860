"""Random walks: every kind of section, nested, with parameters, explicit edges, streams and caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from mstar_rt.graph import (
    ChunkPolicy,
    DynamicLoop,
    FixedChunkPolicy,
    GraphEdge,
    GraphNode,
    LeftContextChunkPolicy,
    Loop,
    Parallel,
    ReceptiveFieldChunkPolicy,
    Section,
    Sequential,
    SlidingWindowChunkPolicy,
    StreamingGraphEdge,
    StreamLoop,
    Walk,
    WalkGraph,
)  # fmt: skip

NAMES = ["a", "b", "c", "d"]
PARAMS = {"short": 2, "long": 4}
# Without shrinking, which takes longer for a walk than a test may.
WALKS = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Drawing:
    """State while a tree is drawn in the order of writing."""

    draw: Any
    streams: bool = False
    caches: bool = False
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: list[GraphEdge | StreamingGraphEdge] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)  # "use.slot" or "loop.collected" -> tensor name
    hidden: set[str] = field(default_factory=set)  # ends that must not be read now
    num_names: int = 0

    def fresh(self, prefix: str) -> str:
        self.num_names += 1
        return f"{prefix}{self.num_names}"

    def int(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def node(self, num_in: int, num_out: int) -> GraphNode:
        """One node per arity, so that uses share nodes under aliases."""
        name = f"n{num_in}x{num_out}"
        slots = tuple(f"i{k}" for k in range(num_in)), tuple(f"o{k}" for k in range(num_out))
        cache = None if num_out else "memory"
        if self.caches and self.int(0, 1):
            name, cache = f"k{name}", "memory"
        node = GraphNode(name, *slots, engine="kv_cache" if cache else "stateless", cache=cache)
        return self.nodes.setdefault(name, node)


@dataclass
class Drawn:
    """A section with the names it reads from outside, and how many producers each of its names has."""

    section: Section
    reads: set[str]
    produced: Counter[str]
    direct_uses: list[str]


def _draw_section(d: Drawing, depth: int, ambiguous: set[str]) -> Drawn:
    kinds = ["node", "sequential", "parallel", "loop", "dynamic", *["streams"] * d.streams]
    kind = d.draw(st.sampled_from(kinds)) if depth else "node"
    if kind == "node":
        return _draw_use(d, ambiguous)
    if kind == "streams":
        return _draw_streams(d, depth, ambiguous)
    if kind == "sequential":
        return _draw_sequential(d, depth, ambiguous)
    if kind == "parallel":
        parts = [_draw_section(d, depth - 1, ambiguous) for _ in range(d.int(1, 3))]
        return Drawn(
            Parallel(*(part.section for part in parts)),
            set().union(*(part.reads for part in parts)),
            sum((part.produced for part in parts), Counter()),
            [name for part in parts for name in part.direct_uses],
        )
    return _draw_loop(d, depth, ambiguous, dynamic=kind == "dynamic")


def _draw_use(d: Drawing, ambiguous: set[str], num_streamed: int = 0, num_out: int | None = None) -> Drawn:
    """`num_streamed` of the slots are left to streaming edges, the first ones."""
    node = d.node(num_streamed + d.int(0, 3 - num_streamed), d.int(0, 2) if num_out is None else num_out)
    readable = [name for name in [*NAMES, "w"] if name not in ambiguous]
    reads = {slot: d.draw(st.sampled_from(readable)) for slot in node.inputs[num_streamed:]}
    outputs = dict(zip(node.outputs, d.draw(st.permutations(NAMES)), strict=False))
    use = node.bind(reads, outputs, alias=d.fresh("u"))
    ends = sorted(set(d.ends) - d.hidden)
    for slot in node.inputs[num_streamed:]:
        if ends and d.int(0, 6) == 0:
            d.edges.append(GraphEdge(d.draw(st.sampled_from(ends)), f"{use.name}.{slot}"))
            del reads[slot]
    d.ends.update({f"{use.name}.{slot}": tensor for slot, tensor in outputs.items()})
    return Drawn(use, set(reads.values()), Counter(outputs.values()), [use.name])


def _draw_streams(d: Drawing, depth: int, ambiguous: set[str]) -> Drawn:
    """A loop and what its streams go into, and what their streams go into: none may read what another gives in the
    end."""
    hidden_before, known = set(d.hidden), set(d.ends)
    first = _draw_loop(d, depth, ambiguous, dynamic=bool(d.int(0, 1)), feeds=True)
    group, side_by_side = [first], bool(d.int(0, 1))
    for _ in range(d.int(1, 2)):
        d.hidden = hidden_before | (set(d.ends) - known)
        unseen = ambiguous if side_by_side else ambiguous | {name for part in group for name in part.produced}
        producer = d.draw(st.sampled_from(group))
        group.append(_draw_stream_loop(d, depth, unseen, producer.direct_uses))
    d.hidden = hidden_before
    produced: Counter[str] = Counter()
    for part in group:
        produced = produced + part.produced if side_by_side else Counter({**produced, **part.produced})
    sections = [part.section for part in group]
    section = Parallel(*sections) if side_by_side else Sequential(*sections)
    return Drawn(section, set().union(*(part.reads for part in group)), produced, [])


def _draw_stream_loop(d: Drawing, depth: int, ambiguous: set[str], sources: list[str]) -> Drawn:
    """A StreamLoop with one or two readers; `direct_uses` of what is drawn are those that can feed another one."""
    policy, ends = _draw_policy(d), [end for end in sorted(d.ends) if end.split(".")[0] in sources]
    readers = []
    for _ in range(d.int(1, 2)):
        num_streamed = d.int(1, 2)
        reader = _draw_use(d, ambiguous, num_streamed, num_out=d.int(1, 2))
        for slot in range(num_streamed):
            target = f"{reader.direct_uses[0]}.i{slot}"
            d.edges.append(StreamingGraphEdge(d.draw(st.sampled_from(ends)), target, policy, d.int(1, 3)))
        readers.append(reader)
    read = Drawn(
        Parallel(*(reader.section for reader in readers)),
        set().union(*(reader.reads for reader in readers)),
        sum((reader.produced for reader in readers), Counter()),
        [name for reader in readers for name in reader.direct_uses],
    )
    hidden = {n for n, count in read.produced.items() if count > 1} | (ambiguous - set(read.produced))
    rest = _draw_section(d, depth - 1, hidden)
    produced = Counter({**read.produced, **rest.produced})
    reads = read.reads | (rest.reads - set(read.produced))
    body = Drawn(Sequential(read.section, rest.section), reads, produced, read.direct_uses)
    return _drawn_loop(d, body, lambda name, carry, collect: StreamLoop(name, body.section, carry, collect))


def _draw_policy(d: Drawing) -> ChunkPolicy:
    kind, k, more = d.int(0, 3), d.int(1, 3), d.int(0, 3)
    if kind == 0:
        return FixedChunkPolicy(k)
    if kind == 1:
        return SlidingWindowChunkPolicy(k + more, k)
    if kind == 2:
        return LeftContextChunkPolicy(k, more)
    return ReceptiveFieldChunkPolicy(more, d.int(0, 3), tuple(d.int(1, 3) for _ in range(k)))


def _draw_sequential(d: Drawing, depth: int, ambiguous: set[str]) -> Drawn:
    parts: list[Drawn] = []
    produced: Counter[str] = Counter()
    reads: set[str] = set()
    for _ in range(d.int(1, 3)):
        hidden = {n for n, count in produced.items() if count > 1} | (ambiguous - set(produced))
        part = _draw_section(d, depth - 1, hidden)
        reads |= part.reads - set(produced)
        produced = Counter({**produced, **part.produced})
        parts.append(part)
    names = [name for part in parts for name in part.direct_uses]
    return Drawn(Sequential(*(part.section for part in parts)), reads, produced, names)


def _draw_loop(d: Drawing, depth: int, ambiguous: set[str], dynamic: bool, feeds: bool = False) -> Drawn:
    """`feeds`: streams are to begin in it, so it has a direct node with outputs and may run for longer."""
    inside_before = set(d.ends)
    body = _draw_section(d, depth - 1, ambiguous)
    if feeds:
        source = _draw_use(d, ambiguous, num_out=d.int(1, 2))
        body = Drawn(
            Parallel(body.section, source.section),
            body.reads | source.reads,
            body.produced + source.produced,
            [*body.direct_uses, *source.direct_uses],
        )
    times = d.draw(st.sampled_from([1, 2, 3, "short", "long", *[4, 5, 7, 9] * feeds]))
    limit = PARAMS[times] if isinstance(times, str) else None
    assert inside_before <= set(d.ends)
    leave = d.draw(st.sampled_from(body.direct_uses)) if dynamic and body.direct_uses else None

    def made(name: str, carry: dict[str, str], collect: dict[str, str]) -> Section:
        if leave is None:
            return Loop(name, body.section, times, limit, carry, collect)
        return DynamicLoop(name, body.section, times, limit, carry, collect, leave=leave)

    drawn = _drawn_loop(d, body, made)
    return drawn if feeds else Drawn(drawn.section, drawn.reads, drawn.produced, [])


def _drawn_loop(d: Drawing, body: Drawn, made: Callable[[str, dict[str, str], dict[str, str]], Section]) -> Drawn:
    single = sorted(name for name, count in body.produced.items() if count == 1)
    carry, collect = {}, {}
    if single:
        carry = {name: d.draw(st.sampled_from(single)) for name in sorted(body.reads) if d.int(0, 3)}
        collect = {name: d.fresh("k") for name in single if d.int(0, 3) == 0}
    name = d.fresh("L")
    d.ends.update({f"{name}.{collected}": collected for collected in collect.values()})
    produced = Counter({**body.produced, **dict.fromkeys(collect.values(), 1)})
    return Drawn(made(name, carry, collect), body.reads, produced, body.direct_uses)


@st.composite
def walk_graphs(draw: Any, streams: bool = False, caches: bool = False) -> WalkGraph:
    """A graph of one walk "w"; a last node reads, by explicit edges, all that is neither emitted nor
    persisted. `streams`: with streaming edges; `caches`: nodes that attend over a cache have outputs, too, and the
    order of all of them may be open (see `unordered`)."""
    d = Drawing(draw, streams, caches)
    depth = d.int(1, 3)
    if streams:
        parts = [_draw_streams(d, depth, set()), _draw_sequential(d, min(depth, 2), set())]
        body: Section = Parallel(*(part.section for part in parts))
    else:
        body = _draw_sequential(d, depth + 1, set()).section
    emit, persist = _some_of(d), _some_of(d)
    rest = [end for end in d.ends if end not in emit and end not in persist]
    sink = GraphNode("sink", tuple(f"s{k}" for k in range(len(rest))), ("sunk",))
    d.edges += [GraphEdge(end, f"sink.s{k}") for k, end in enumerate(rest)]
    edges = tuple(d.edges)
    walk = Walk("w", Sequential(body, sink), emit=(*emit, "sunk"), persist=tuple(persist), edges=edges)
    return unordered((*d.nodes.values(), sink), walk)


def unordered(nodes: tuple[GraphNode, ...], walk: Walk) -> WalkGraph:
    """A graph whose nodes of one cache may run in any order, for tests in which that makes no difference."""
    with patch("mstar_rt.graph.walk_graph.check_cache_order"):
        return WalkGraph(nodes, (walk,))


def _some_of(d: Drawing) -> list[str]:
    chosen: dict[str, str] = {}
    for end, tensor in d.ends.items():
        if d.int(0, 2) == 0:
            chosen[tensor] = end
    return sorted(chosen.values())
