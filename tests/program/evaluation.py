"""A direct recursive evaluation of walks that shares no code with the binding or the program.

A value is a number that stands for its provenance: (use, slot, inputs, iteration), interned in one table for
all ways of running, so equal numbers mean equal histories. A node that may leave does so by its value alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.graph import (
    ChunkPolicy,
    DynamicLoop,
    Loop,
    NodeUse,
    Section,
    Sequential,
    StreamChunk,
    StreamingGraphEdge,
    Walk,
)  # fmt: skip


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
    items: dict[str, list[Any]] = field(default_factory=dict)  # by use, in the latest run of the loop around it
    chunks: dict[str, StreamChunk] = field(default_factory=dict)  # by "use.slot", of the latest iteration

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
        edges = {edge.target: edge for edge in self.walk.edges}
        inputs = []
        for slot, tensor in zip(use.node.inputs, use.tensors_in, strict=True):
            edge = edges.get(f"{use.name}.{slot}")
            if isinstance(edge, StreamingGraphEdge):
                inputs.append(self.chunks[edge.target])
            else:
                inputs.append(scope[tensor] if edge is None else self.newest[edge.source])
        outputs = self.provenance.run(use.name, use.node.outputs, iteration, inputs)
        self.fired[use.name, iteration] += 1
        self.left.discard(use.name)
        if self.provenance.leave(use.name, iteration, outputs):
            self.left.add(use.name)
        named = {}
        self.items.setdefault(use.name, []).append(outputs)
        for slot, tensor in zip(use.node.outputs, use.tensors_out, strict=True):
            named[tensor] = outputs[slot]
            self._produce(f"{use.name}.{slot}", tensor, outputs[slot], iteration)
        return named

    def _loop(self, loop: Loop, scope: dict[str, Any], iteration: tuple[int, ...]) -> dict[str, Any]:
        streams = self._streams_into(loop)
        times = self.times[loop.times] if isinstance(loop.times, str) else loop.times
        if streams:
            times = min(len(chunks) for chunks in streams.values())
        assert times is not None
        for use in uses_inside(loop.body):
            self.items.pop(use, None)
        lists: dict[str, list[Any]] = {name: [] for _, name in loop.collect}
        produced: dict[str, Any] = {}
        inner = dict(scope)
        for turn in range(times):
            self.chunks |= {target: chunks[turn] for target, chunks in streams.items()}
            produced = self._section(loop.body, inner, (*iteration, turn))
            inner = {**scope, **{name: produced[output] for name, output in loop.carry}}
            for output, name in loop.collect:
                lists[name].append(produced[output])
            if isinstance(loop, DynamicLoop) and loop.leave in self.left:
                break
        for name, values in lists.items():
            self._produce(f"{loop.name}.{name}", name, values, iteration)
        return {**produced, **lists}

    def _streams_into(self, loop: Loop) -> dict[str, list[StreamChunk]]:
        """By the "use.slot" that reads them."""
        if not loop.is_stream:
            return {}
        direct, into = uses_inside(loop.body, nested=False), {}
        for edge in self.walk.edges:
            if isinstance(edge, StreamingGraphEdge) and edge.target.split(".")[0] in direct:
                use, slot = edge.source.split(".")
                into[edge.target] = chunks_of([outputs[slot] for outputs in self.items[use]], edge.policy)
        return into

    def _produce(self, end: str, tensor: str, value: Any, iteration: tuple[int, ...]) -> None:
        self.newest[end] = value
        self.tensor_names[end] = tensor
        if end in self.walk.emit or tensor in self.walk.emit:
            frozen = tuple(_frozen(value)) if isinstance(value, list) else value
            self.emitted[tensor, iteration, frozen] += 1


def uses_inside(section: Section, nested: bool = True) -> list[str]:
    if isinstance(section, NodeUse):
        return [section.name]
    if isinstance(section, Loop):
        return uses_inside(section.body) if nested else []
    return [name for part in section.sections for name in uses_inside(part, nested)]


def chunks_of(items: list[Any], policy: ChunkPolicy) -> list[StreamChunk]:
    """The chunks of a whole stream, from what the windows of its policy are said to be."""
    chunks: list[StreamChunk] = []
    while not chunks or not chunks[-1].final:
        window = policy.window(len(chunks))
        new_stop, stop = min(window.new_stop, len(items)), min(window.stop, len(items))
        chunks.append(
            StreamChunk(
                items=tuple(items[window.start : stop]),
                start=window.start,
                num_context=window.new_start - window.start,
                num_new=new_stop - window.new_start,
                num_lookahead=stop - new_stop,
                final=window.new_stop >= len(items),
            )
        )
    return chunks
