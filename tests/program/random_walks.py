"""Random walks, and a direct recursive evaluation of them that shares no code with the binding or the
program.

A value is a number that stands for its provenance: (use, slot, inputs, iteration), interned in one table for
both ways of running, so equal numbers mean equal histories. A node that may leave does so by its value alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from mstar_rt.graph import (
    DynamicLoop,
    GraphEdge,
    GraphNode,
    Loop,
    NodeUse,
    Parallel,
    Section,
    Sequential,
    Walk,
    WalkGraph,
)  # fmt: skip

NAMES = ["a", "b", "c", "d"]
PARAMS = {"short": 2, "long": 4}


@dataclass
class Provenance:
    """Interned histories. `leave` and `run` define what every node of a random walk computes."""

    ids: dict[Any, int] = field(default_factory=dict)

    def value(self, history: Any) -> int:
        return self.ids.setdefault(history, len(self.ids))

    def run(self, use: str, outputs: tuple[str, ...], iteration: tuple[int, ...], inputs: list[Any]) -> dict[str, int]:
        read = tuple(tuple(_frozen(v)) if isinstance(v, list) else v for v in inputs)
        return {slot: self.value((use, slot, iteration, read)) for slot in outputs}

    def leave(self, use: str, iteration: tuple[int, ...], outputs: dict[str, int]) -> bool:
        mark = sum(outputs.values()) if outputs else self.value((use, iteration))
        return (mark * 2654435761 >> 5) % 3 == 0


def _frozen(values: list[Any]) -> list[Any]:
    return [tuple(_frozen(v)) if isinstance(v, list) else v for v in values]


@dataclass
class Drawing:
    """State while a tree is drawn in the order of writing."""

    draw: Any
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: list[GraphEdge] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)  # "use.slot" or "loop.collected" -> tensor name
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
    kind = d.draw(st.sampled_from(["node", "sequential", "parallel", "loop", "dynamic"])) if depth else "node"
    if kind == "node":
        return _draw_use(d, ambiguous)
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


def _draw_use(d: Drawing, ambiguous: set[str]) -> Drawn:
    node = d.node(d.int(0, 3), d.int(0, 2))
    readable = [name for name in [*NAMES, "w"] if name not in ambiguous]
    reads = {slot: d.draw(st.sampled_from(readable)) for slot in node.inputs}
    outputs = dict(zip(node.outputs, d.draw(st.permutations(NAMES)), strict=False))
    use = node.bind(reads, outputs, alias=d.fresh("u"))
    for slot in node.inputs:
        if d.ends and d.int(0, 6) == 0:
            d.edges.append(GraphEdge(d.draw(st.sampled_from(sorted(d.ends))), f"{use.name}.{slot}"))
            del reads[slot]
    d.ends.update({f"{use.name}.{slot}": tensor for slot, tensor in outputs.items()})
    return Drawn(use, set(reads.values()), Counter(outputs.values()), [use.name])


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


def _draw_loop(d: Drawing, depth: int, ambiguous: set[str], dynamic: bool) -> Drawn:
    inside_before = set(d.ends)
    body = _draw_section(d, depth - 1, ambiguous)
    single = sorted(name for name, count in body.produced.items() if count == 1)
    carry, collect = {}, {}
    if single:
        carry = {name: d.draw(st.sampled_from(single)) for name in sorted(body.reads) if d.int(0, 3)}
        collect = {name: d.fresh("k") for name in single if d.int(0, 3) == 0}
    name = d.fresh("L")
    times = d.draw(st.sampled_from([1, 2, 3, "short", "long"]))
    limit = PARAMS[times] if isinstance(times, str) else None
    assert inside_before <= set(d.ends)
    d.ends.update({f"{name}.{collected}": collected for collected in collect.values()})
    if dynamic and body.direct_uses:
        leave = d.draw(st.sampled_from(body.direct_uses))
        section: Section = DynamicLoop(name, body.section, times, limit, carry, collect, leave=leave)
    else:
        section = Loop(name, body.section, times, limit, carry, collect)
    produced = Counter({**body.produced, **dict.fromkeys(collect.values(), 1)})
    return Drawn(section, body.reads, produced, [])


@st.composite
def walk_graphs(draw: Any) -> WalkGraph:
    """A graph of one walk "w"; a last node reads, by explicit edges, all that is neither emitted nor
    persisted."""
    d = Drawing(draw)
    body = _draw_sequential(d, 4, set()).section
    emit, persist = _some_of(d), _some_of(d)
    rest = [end for end in d.ends if end not in emit and end not in persist]
    sink = GraphNode("sink", tuple(f"s{k}" for k in range(len(rest))), ("sunk",))
    d.edges += [GraphEdge(end, f"sink.s{k}") for k, end in enumerate(rest)]
    edges = tuple(d.edges)
    walk = Walk("w", Sequential(body, sink), emit=(*emit, "sunk"), persist=tuple(persist), edges=edges)
    return WalkGraph((*d.nodes.values(), sink), (walk,))


def _some_of(d: Drawing) -> list[str]:
    chosen: dict[str, str] = {}
    for end, tensor in d.ends.items():
        if d.int(0, 2) == 0:
            chosen[tensor] = end
    return sorted(chosen.values())


@dataclass
class Evaluation:
    """What one request gives: a plain recursive interpreter, with dictionaries for scopes."""

    walk: Walk
    times: dict[str, int]
    provenance: Provenance
    fired: Counter[Any] = field(default_factory=Counter)
    emitted: Counter[Any] = field(default_factory=Counter)
    newest: dict[str, Any] = field(default_factory=dict)  # "use.slot" -> value of its latest execution
    tensor_names: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)  # uses whose latest execution said leave

    def run(self, inputs: dict[str, Any]) -> None:
        self._section(self.walk.body, inputs, ())

    @property
    def persisted(self) -> dict[str, Any]:
        ends = [end if "." in end else self._end_of(end) for end in self.walk.persist]
        return {self.tensor_names[end]: self.newest[end] for end in ends}

    def _end_of(self, tensor: str) -> str:
        return next(end for end, name in self.tensor_names.items() if name == tensor)

    def _section(self, section: Section, scope: dict[str, Any], iteration: tuple[int, ...]) -> dict[str, Any]:
        if isinstance(section, NodeUse):
            return self._use(section, scope, iteration)
        if isinstance(section, Loop):
            return self._loop(section, scope, iteration)
        produced: dict[str, Any] = {}
        for part in section.sections:
            seen = {**scope, **produced} if isinstance(section, Sequential) else scope
            produced.update(self._section(part, seen, iteration))
        return produced

    def _use(self, use: NodeUse, scope: dict[str, Any], iteration: tuple[int, ...]) -> dict[str, Any]:
        edges = {edge.target: edge.source for edge in self.walk.edges}
        inputs = []
        for slot, tensor in zip(use.node.inputs, use.tensors_in, strict=True):
            end = edges.get(f"{use.name}.{slot}")
            inputs.append(scope[tensor] if end is None else self.newest[end])
        outputs = self.provenance.run(use.name, use.node.outputs, iteration, inputs)
        self.fired[use.name, iteration] += 1
        self.left.discard(use.name)
        if self.provenance.leave(use.name, iteration, outputs):
            self.left.add(use.name)
        named = {}
        for slot, tensor in zip(use.node.outputs, use.tensors_out, strict=True):
            named[tensor] = outputs[slot]
            self._produce(f"{use.name}.{slot}", tensor, outputs[slot], iteration)
        return named

    def _loop(self, loop: Loop, scope: dict[str, Any], iteration: tuple[int, ...]) -> dict[str, Any]:
        times = self.times[loop.times] if isinstance(loop.times, str) else loop.times
        lists: dict[str, list[Any]] = {name: [] for _, name in loop.collect}
        produced: dict[str, Any] = {}
        inner = dict(scope)
        for turn in range(times):
            produced = self._section(loop.body, inner, (*iteration, turn))
            inner = {**scope, **{name: produced[output] for name, output in loop.carry}}
            for output, name in loop.collect:
                lists[name].append(produced[output])
            if isinstance(loop, DynamicLoop) and loop.leave in self.left:
                break
        for name, values in lists.items():
            self._produce(f"{loop.name}.{name}", name, values, iteration)
        return {**produced, **lists}

    def _produce(self, end: str, tensor: str, value: Any, iteration: tuple[int, ...]) -> None:
        self.newest[end] = value
        self.tensor_names[end] = tensor
        if end in self.walk.emit or tensor in self.walk.emit:
            frozen = tuple(_frozen(value)) if isinstance(value, list) else value
            self.emitted[tensor, iteration, frozen] += 1
