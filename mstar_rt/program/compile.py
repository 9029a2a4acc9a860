"""Compile a bound walk to a flat `Program`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_rt.graph import (
    BoundLoop,
    BoundStream,
    BoundUse,
    BoundWalk,
    Carried,
    Collected,
    LastValue,
    NodeOutput,
    Source,
    Streamed,
    WalkGraph,
    WalkInput,
)  # fmt: skip
from mstar_rt.program.program import ROOT, Join, Opening, Port, Program, ProgramLoop, ProgramNode, ProgramStream


def compile_walk(graph: WalkGraph, walk_name: str) -> Program:
    """The program of one walk; `graph` is already validated. Raises: NotFound for an unknown walk."""
    return _Compiler(graph.bound(walk_name)).compile()


@dataclass
class _DraftPort:
    kind: str
    name: str
    loops: tuple[int, ...]
    reads: list[tuple[int, int]] = field(default_factory=list)
    enters: list[int] = field(default_factory=list)
    nexts: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    collects: list[int] = field(default_factory=list)
    emits: list[str] = field(default_factory=list)
    persists: list[str] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)

    def freeze(self, index: int) -> Port:
        return Port(
            index=index,
            kind=self.kind,
            name=self.name,
            depth=len(self.loops),
            loop=self.loops[-1] if self.loops else ROOT,
            reads=tuple(self.reads),
            enters=tuple(self.enters),
            nexts=tuple(self.nexts),
            exits=tuple(self.exits),
            collects=tuple(self.collects),
            emits=tuple(self.emits),
            persists=tuple(self.persists),
            streams=tuple(self.streams),
        )


class _Compiler:
    def __init__(self, bound: BoundWalk) -> None:
        self.bound = bound
        self.loop_index = {around.loop.name: index for index, around in enumerate(bound.loops)}
        self.node_index = {placed.use.name: placed.position for placed in bound.uses}
        self.drafts: list[_DraftPort] = []
        self.port_of_source: dict[Source, int] = {}
        self.joins: list[Join] = []

    def compile(self) -> Program:
        inputs = tuple((name, self._port(WalkInput(name))) for name in self.bound.inputs)
        nodes = tuple(self._node(placed) for placed in self.bound.uses)
        for placed in self.bound.uses:
            self._read_all(placed)
        for around in self.bound.loops:
            self._connect_carries(around)
        streams = tuple(self._stream(index, stream) for index, stream in enumerate(self.bound.streams))
        for name, source in self.bound.emits:
            self.drafts[self._port(source)].emits.append(name)
        for name, source in self.bound.persists:
            self.drafts[self._port(source)].persists.append(name)
        return Program(
            walk=self.bound.walk.name,
            nodes=nodes,
            joins=tuple(self.joins),
            loops=tuple(self._loop(around) for around in self.bound.loops),
            ports=tuple(draft.freeze(index) for index, draft in enumerate(self.drafts)),
            inputs=inputs,
            openings=tuple(self._opening(index) for index in range(ROOT, len(self.bound.loops))),
            num_items=self._num_items(()),
            streams=streams,
        )

    def _node(self, placed: BoundUse) -> ProgramNode:
        use = placed.use
        leaves = None
        if placed.loops:
            innermost = self.loop_index[placed.loops[-1]]
            if self.bound.loops[innermost].loop.leave_node == use.name:
                leaves = innermost
        return ProgramNode(
            index=placed.position,
            name=use.name,
            node=use.node,
            order=placed.position,
            loops=self._indices(placed.loops),
            slots=use.node.inputs,
            outputs=tuple((slot, self._port(NodeOutput(use.name, slot))) for slot in use.node.outputs),
            leaves=leaves,
            feeds=tuple(i for i, stream in enumerate(self.bound.streams) if stream.source.use == use.name),
            drains=tuple(i for i, stream in enumerate(self.bound.streams) if stream.use == use.name),
        )

    def _stream(self, index: int, stream: BoundStream) -> ProgramStream:
        source = self._port(stream.source)
        self.drafts[source].streams.append(index)
        return ProgramStream(
            index=index,
            source=source,
            source_node=self.node_index[stream.source.use],
            producer=self.loop_index[stream.producer_loop],
            consumer=self.loop_index[stream.consumer_loop],
            chunk=self._port(Streamed(stream.consumer_loop, stream.use, stream.slot)),
            reader_node=self.node_index[stream.use],
            policy=stream.edge.policy,
            max_ready_chunks=stream.edge.max_ready_chunks,
            decides=all(other.consumer_loop != stream.consumer_loop for other in self.bound.streams[:index]),
        )

    def _read_all(self, placed: BoundUse) -> None:
        self._join(placed.inputs, self._indices(placed.loops), None)

    def _join(self, sources: tuple[Source, ...], loops: tuple[int, ...], relay_to: int | None) -> None:
        ports = [self._port(source) for source in sources]
        depths = [len(self.drafts[port].loops) for port in ports]
        assert all(self.drafts[port].loops == loops[:depth] for port, depth in zip(ports, depths, strict=True))
        has_control = not any(depth == len(loops) for depth in depths)
        if has_control:
            depths.append(len(loops))
        for slot, port in enumerate(ports):
            self.drafts[port].reads.append((len(self.joins), slot))
        self.joins.append(Join(len(loops), loops, tuple(depths), has_control, relay_to))

    def _port(self, source: Source) -> int:
        """The port of `source`, made and connected to where its values come from when first asked for."""
        if source not in self.port_of_source:
            kind, name = _kind_and_name(source)
            draft = _DraftPort(kind, name, self._indices(self.bound.loops_around(source)))
            self.port_of_source[source] = len(self.drafts)
            self.drafts.append(draft)
            if isinstance(source, LastValue):
                self.drafts[self._port(source.source)].exits.append(self.port_of_source[source])
            elif isinstance(source, Collected):
                collects = self.bound.loops[self.loop_index[source.loop]].collects
                inside = next(inner for name, inner in collects if name == source.name)
                self.drafts[self._port(inside)].collects.append(self.port_of_source[source])
        return self.port_of_source[source]

    def _connect_carries(self, around: BoundLoop) -> None:
        outside = self._indices(around.loops)
        for name, initial, following in around.carries:
            carry = self._port(Carried(around.loop.name, name))
            self.drafts[self._port(following)].nexts.append(carry)
            start = self.drafts[self._port(initial)]
            if start.loops == outside:
                start.enters.append(carry)
            else:
                self._join((initial,), outside, relay_to=carry)

    def _loop(self, around: BoundLoop) -> ProgramLoop:
        loop, index, depth = around.loop, self.loop_index[around.loop.name], len(around.loops) + 1
        return ProgramLoop(
            index=index,
            name=loop.name,
            parent=self.loop_index[around.loops[-1]] if around.loops else ROOT,
            depth=depth,
            times=loop.times if isinstance(loop.times, int) else None,
            param=loop.times if isinstance(loop.times, str) else None,
            limit=self.bound.max_times(loop.name),
            dynamic=loop.leave_node is not None or loop.is_stream,
            num_items=self._num_items((*around.loops, loop.name)),
            frees=tuple(
                (join_index, slot)
                for join_index, join in enumerate(self.joins)
                for slot, slot_depth in join.sticky
                if slot_depth == depth - 1 and join.loops[slot_depth] == index
            ),
            is_stream=loop.is_stream,
        )

    def _num_items(self, loops: tuple[str, ...]) -> int:
        nodes = sum(placed.loops == loops for placed in self.bound.uses)
        return nodes + sum(around.loops == loops for around in self.bound.loops)

    def _opening(self, scope: int) -> Opening:
        joins = tuple(
            index
            for index, join in enumerate(self.joins)
            if join.has_control and (join.loops[-1] if join.loops else ROOT) == scope
        )
        inner = tuple(
            self.loop_index[around.loop.name]
            for around in self.bound.loops
            if (self.loop_index[around.loops[-1]] if around.loops else ROOT) == scope
        )
        waiting = tuple(loop for loop in inner if self._opening(loop) != Opening())
        return Opening(joins, waiting)

    def _indices(self, loops: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.loop_index[name] for name in loops)


def _kind_and_name(source: Source) -> tuple[str, str]:
    if isinstance(source, WalkInput):
        return "input", source.name
    if isinstance(source, NodeOutput):
        return "output", f"{source.use}.{source.slot}"
    if isinstance(source, Carried):
        return "carry", f"{source.loop}.{source.name}"
    if isinstance(source, Collected):
        return "collect", f"{source.loop}.{source.name}"
    if isinstance(source, Streamed):
        return "chunk", f"{source.use}.{source.slot}"
    return "exit", source.loop
