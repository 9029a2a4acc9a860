"""Refuse walks in which a stream could wait for itself, whatever the length of its buffers.

Loops that streaming edges connect end together: the producer is held back until its chunks are read. So none of them
may wait for the end of another, directly or through other nodes and loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mstar_rt.errors import GraphError
from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.source import Collected, NodeOutput, Source, origin

Wait = tuple[str, str]  # (giver, taker)


def check_stream_order(bound: BoundWalk) -> None:
    """Raises: GraphError naming the two loops and what one waits for."""
    around = {placed.use.name: placed.loops for placed in bound.uses} | {
        each.loop.name: each.loops for each in bound.loops
    }
    group = _groups(bound, list(around))
    waits: dict[str, dict[str, Wait]] = {}
    for reader, source in _reads(bound):
        giver, taker = _side_by_side((*around[source], source), (*around[reader], reader))
        waits.setdefault(group[taker], {}).setdefault(group[giver], (giver, taker))
    for each in dict.fromkeys(group[stream.consumer_loop] for stream in bound.streams):
        path = _way_back(waits, each)
        if path:
            raise GraphError(f"walk {bound.walk.name!r} could wait for ever: {_why(bound, path)}")


def _groups(bound: BoundWalk, names: list[str]) -> dict[str, str]:
    """Every use and loop with one of the loops that its streams connect it to, itself if none."""
    group = {name: name for name in names}
    for stream in bound.streams:
        old, new = group[stream.consumer_loop], group[stream.producer_loop]
        group = {name: new if each == old else each for name, each in group.items()}
    return group


def _reads(bound: BoundWalk) -> Iterator[tuple[str, str]]:
    """(who reads, use or loop that gives) of every value, chunks and what comes from the iteration before left out."""
    pairs: list[tuple[str, Source]] = [(placed.use.name, s) for placed in bound.uses for s in placed.inputs]
    pairs += [(each.loop.name, initial) for each in bound.loops for _, initial, _ in each.carries]
    for reader, source in pairs:
        giver = origin(source)
        if isinstance(giver, NodeOutput):
            yield reader, giver.use
        elif isinstance(giver, Collected):
            yield reader, giver.loop


def _side_by_side(giver: tuple[str, ...], taker: tuple[str, ...]) -> tuple[str, str]:
    """Where the two part: the outermost loops, or nodes, that hold one and not the other."""
    depth = 0
    while giver[depth] == taker[depth]:
        depth += 1
    return giver[depth], taker[depth]


def _way_back(waits: Mapping[str, Mapping[str, Wait]], start: str) -> list[Wait]:
    """The shortest chain of waits that leads from a group to itself, empty if there is none."""
    paths: dict[str, list[Wait]] = {start: []}
    todo = [start]
    for group in todo:
        for further, wait in waits.get(group, {}).items():
            if further == start:
                return [*paths[group], wait]
            if further not in paths:
                paths[further] = [*paths[group], wait]
                todo.append(further)
    return []


def _why(bound: BoundWalk, path: list[Wait]) -> str:
    loops = {each.loop.name for each in bound.loops}
    chain = [f"{taker!r} waits for {'the end of ' if giver in loops else ''}{giver!r}" for giver, taker in path]
    named = {name for wait in path for name in wait}
    ties = [
        f"{each.producer_loop!r} feeds {each.consumer_loop!r}"
        for each in bound.streams
        if named & {each.producer_loop, each.consumer_loop}
    ]
    return (
        f"{', '.join(chain)}, but {' and '.join(dict.fromkeys(ties))}, and loops tied by a stream end together: "
        f"read that value behind {path[0][1]!r} or make it elsewhere"
    )
