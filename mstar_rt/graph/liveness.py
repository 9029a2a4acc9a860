"""Refuse what could never have an effect: dead nodes, carried and collected values that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from mstar_rt.errors import GraphError
from mstar_rt.graph.binding import BoundUse, BoundWalk
from mstar_rt.graph.source import Carried, Collected, LastValue, NodeOutput, Source, Streamed, origin


def check_alive(bound: BoundWalk) -> None:
    """Every node must help to make something that is emitted, persisted or written to a cache.

    Raises: GraphError naming the walk and the node or loop.
    """
    reads = _all_reads(bound)
    read_outputs = {origin(source) for source in reads}
    alive = _alive_uses(bound)
    for placed in bound.uses:
        if placed.use.name not in alive:
            raise GraphError(f"walk {bound.walk.name!r} has a dead node: {_why_dead(placed, read_outputs)}")
    wanted = {source for source in reads if isinstance(source, Carried | Collected)}
    for around in bound.loops:
        for name, _, _ in around.carries:
            if Carried(around.loop.name, name) not in wanted:
                raise GraphError(
                    f"walk {bound.walk.name!r} has loop {around.loop.name!r}, which carries {name!r}, "
                    f"but nothing in its body reads that"
                )
        for name, _ in around.collects:
            if Collected(around.loop.name, name) not in read_outputs:
                raise GraphError(
                    f"walk {bound.walk.name!r} has loop {around.loop.name!r}, which collects {name!r}, "
                    f"but nothing reads, emits or persists that"
                )


def _all_reads(bound: BoundWalk) -> set[Source]:
    reads = {source for placed in bound.uses for source in placed.inputs}
    for around in bound.loops:
        reads.update(source for _, initial, next_one in around.carries for source in (initial, next_one))
        reads.update(source for _, source in around.collects)
    reads.update(stream.source for stream in bound.streams)
    return reads | {source for _, source in bound.emits} | {source for _, source in bound.persists}


def _alive_uses(bound: BoundWalk) -> set[str]:
    """Names of the uses from which something that has an effect follows, found backwards from the effects."""
    uses = {placed.use.name: placed for placed in bound.uses}
    loops = {around.loop.name: around for around in bound.loops}
    items = {(stream.use, stream.slot): stream.source for stream in bound.streams}
    alive: set[str] = set()
    seen: set[Source] = set()
    todo: list[Source] = [source for _, source in (*bound.emits, *bound.persists)]

    def revive(placed: BoundUse) -> Iterable[Source]:
        """A node that runs needs its inputs, and the nodes that may end the loops around it."""
        if placed.use.name in alive:
            return
        alive.add(placed.use.name)
        yield from placed.inputs
        for name in placed.loops:
            leave = loops[name].loop.leave_node
            if leave is not None:
                yield from revive(uses[leave])

    for placed in bound.uses:
        if placed.use.node.cache is not None:
            todo.extend(revive(placed))
    while todo:
        source = todo.pop()
        if source in seen:
            continue
        seen.add(source)
        if isinstance(source, NodeOutput):
            todo.extend(revive(uses[source.use]))
        elif isinstance(source, LastValue):
            todo.append(source.source)
        elif isinstance(source, Streamed):
            todo.append(items[source.use, source.slot])
        elif isinstance(source, Carried):
            todo.extend(s for n, *both in loops[source.loop].carries if n == source.name for s in both)
        elif isinstance(source, Collected):
            todo.extend(s for n, s in loops[source.loop].collects if n == source.name)
    return alive


def _why_dead(placed: BoundUse, read_outputs: AbstractSet[Source]) -> str:
    use = placed.use
    slots = [slot for slot in use.node.outputs if NodeOutput(use.name, slot) in read_outputs]
    if not slots:
        outputs = " or ".join(repr(tensor) for tensor in use.tensors_out)
        return f"nothing reads, emits or persists {outputs} of {use.name!r}, remove it or use what it gives"
    return (
        f"{use.name!r} is read only by nodes that are dead themselves, "
        f"so nothing that is emitted or persisted follows from it"
    )
