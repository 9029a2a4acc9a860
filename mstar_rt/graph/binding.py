"""Resolve the tensor names of one walk: every input slot gets its source, or a GraphError says why not."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import nearest
from mstar_rt.graph.edge import StreamingGraphEdge
from mstar_rt.graph.names import Producer, WalkNames
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Parallel, Section, Sequential
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, Streamed, WalkInput, label
from mstar_rt.graph.walk import Walk

# A name may have several producers (branches of a Parallel); that is a fault only where something reads it.
Scope = dict[str, tuple[Source, ...]]


@dataclass(frozen=True)
class BoundUse:
    """A node use with its place: `position` in the order of writing, `loops` around it, outermost first."""

    use: NodeUse
    position: int
    loops: tuple[str, ...]
    inputs: tuple[Source, ...]


@dataclass(frozen=True)
class BoundLoop:
    """`loops` are those around it; `carries` holds (name, initial, next) and `collects` (name, source)."""

    loop: Loop
    loops: tuple[str, ...]
    carries: tuple[tuple[str, Source, Source], ...]
    collects: tuple[tuple[str, Source], ...]


@dataclass(frozen=True)
class BoundStream:
    """A streaming edge: each iteration of `producer_loop` gives an item, `slot` of the node `use` reads a chunk of
    them in each iteration of the StreamLoop `consumer_loop`."""

    edge: StreamingGraphEdge
    source: NodeOutput
    producer_loop: str
    consumer_loop: str
    use: str
    slot: str


@dataclass(frozen=True)
class BoundWalk:
    """A walk without names left to resolve: emitted sources count per iteration, persisted ones once."""

    walk: Walk
    inputs: tuple[str, ...]
    uses: tuple[BoundUse, ...]
    loops: tuple[BoundLoop, ...]
    emits: tuple[tuple[str, Source], ...]
    persists: tuple[tuple[str, Source], ...]
    streams: tuple[BoundStream, ...] = ()

    def loops_around(self, source: Source) -> tuple[str, ...]:
        """The loops in whose every iteration `source` has a value, outermost first."""
        if isinstance(source, WalkInput):
            return ()
        if isinstance(source, NodeOutput):
            return next(bound.loops for bound in self.uses if bound.use.name == source.use)
        around = next(bound.loops for bound in self.loops if bound.loop.name == source.loop)
        return (*around, source.loop) if isinstance(source, Carried | Streamed) else around

    def max_times(self, loop: str) -> int:
        """The largest number of iterations of a loop; a StreamLoop has at most a chunk per item and an empty one."""
        for stream in self.streams:
            if stream.consumer_loop == loop:
                return self.max_times(stream.producer_loop) + 1
        return next(bound.loop.max_times for bound in self.loops if bound.loop.name == loop)


def bind_walk(walk: Walk) -> BoundWalk:
    """Resolve `walk`; raises GraphError at the first fault."""
    return _Binder(walk).bind()


class _Binder:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.names = WalkNames(walk)
        self.inputs: list[str] = []
        self.uses: list[BoundUse] = []
        self.loops: dict[str, BoundLoop] = {}

    def bind(self) -> BoundWalk:
        self._section(self.walk.body, {}, ())
        emits = self.names.selected(self.walk.emit, "emits")
        persists = self.names.selected(self.walk.persist, "persists")
        return BoundWalk(
            walk=self.walk,
            inputs=tuple(self.inputs),
            uses=tuple(self.uses),
            loops=tuple(self.loops[name] for name in self.names.loops),
            emits=tuple(emits.items()),
            persists=tuple((name, self._seen_from(producer, ())) for name, producer in persists.items()),
            streams=tuple(self._stream(edge) for edge in self.names.streams.values()),
        )

    def _stream(self, edge: StreamingGraphEdge) -> BoundStream:
        source, (use, slot) = NodeOutput(*edge.source.split(".")), edge.target.split(".")
        return BoundStream(edge, source, self.names.around[source.use][-1], self.names.around[use][-1], use, slot)

    def _section(self, section: Section, scope: Scope, loops: tuple[str, ...]) -> Scope:
        """Bind all inputs inside `section`; returns what it produces, as seen from behind it."""
        if isinstance(section, NodeUse):
            return self._use(section, scope, loops)
        if isinstance(section, Sequential):
            produced: Scope = {}
            for part in section.sections:
                produced |= self._section(part, scope | produced, loops)
            return produced
        if isinstance(section, Parallel):
            return _joined([self._section(part, scope, loops) for part in section.sections])
        return self._loop(section, scope, loops)

    def _use(self, use: NodeUse, scope: Scope, loops: tuple[str, ...]) -> Scope:
        sources: list[Source] = []
        for slot, tensor in zip(use.node.inputs, use.tensors_in, strict=True):
            end = f"{use.name}.{slot}"
            producer = self.names.edges.get(end)
            if end in self.names.streams:
                sources.append(Streamed(loops[-1], use.name, slot))
            elif producer is not None:
                sources.append(self._seen_from(producer, loops))
            else:
                fix = f'give it an explicit edge, GraphEdge("...", "{use.name}.{slot}")'
                sources.append(self._read(tensor, scope, f"node {use.name!r}, which reads {tensor!r}", fix))
        self.uses.append(BoundUse(use, len(self.uses), loops, tuple(sources)))
        slots = zip(use.node.outputs, use.tensors_out, strict=True)
        return {tensor: (NodeOutput(use.name, slot),) for slot, tensor in slots}

    def _loop(self, loop: Loop, scope: Scope, loops: tuple[str, ...]) -> Scope:
        where = f"loop {loop.name!r}"
        fix = "bind the outputs to different names"
        initials = [self._read(name, scope, f"{where}, which carries {name!r}", fix) for name, _ in loop.carry]
        carried: Scope = {name: (Carried(loop.name, name),) for name, _ in loop.carry}
        produced = self._section(loop.body, scope | carried, (*loops, loop.name))
        carries = tuple(
            (name, initial, self._output(output, produced, f"{where}, which carries {output!r} as {name!r}"))
            for (name, output), initial in zip(loop.carry, initials, strict=True)
        )
        collects = tuple(
            (name, self._output(output, produced, f"{where}, which collects {output!r}"))
            for output, name in loop.collect
        )
        self._check_collected_names(loop, produced)
        self.loops[loop.name] = BoundLoop(loop, loops, carries, collects)
        last: Scope = {
            name: tuple(LastValue(loop.name, source) for source in sources) for name, sources in produced.items()
        }
        return last | {name: (Collected(loop.name, name),) for name, _ in collects}

    def _check_collected_names(self, loop: Loop, produced: Scope) -> None:
        names = [name for _, name in loop.collect]
        for output, name in loop.collect:
            if name in produced or names.count(name) > 1:
                what = f"has loop {loop.name!r}, which collects {output!r} as {name!r}"
                raise self.names.error(f"{what}, but it gives a tensor of that name already, use a new name")

    def _read(self, name: str, scope: Scope, what: str, fix: str) -> Source:
        """The nearest upstream producer of `name`; what nothing upstream produces is an input of the walk."""
        if name in scope:
            return self._only(scope[name], what, fix)
        if name not in self.inputs:
            self.inputs.append(name)
        return WalkInput(name)

    def _output(self, name: str, produced: Scope, what: str) -> Source:
        if name not in produced:
            raise self.names.error(f"has {what}, but its body gives no {name!r}, {nearest(name, produced)}")
        return self._only(produced[name], what, "bind the outputs to different names")

    def _only(self, sources: tuple[Source, ...], what: str, fix: str) -> Source:
        if len(sources) > 1:
            producers = " and ".join(label(source) for source in sources)
            raise self.names.error(f"has {what}, with {len(sources)} producers: {producers}; {fix}")
        return sources[0]

    def _seen_from(self, producer: Producer, loops: tuple[str, ...]) -> Source:
        """`producer` seen from inside `loops`: the last value of loops that are only around it."""
        around = self.names.around[producer.use if isinstance(producer, NodeOutput) else producer.loop]
        seen: Source = producer
        for depth in reversed(range(len(around))):
            if loops[: depth + 1] != around[: depth + 1]:
                seen = LastValue(around[depth], seen)
        return seen


def _joined(branches: list[Scope]) -> Scope:
    joined: Scope = {}
    for branch in branches:
        for name, sources in branch.items():
            joined[name] = joined.get(name, ()) + sources
    return joined
