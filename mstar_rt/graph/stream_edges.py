"""Where streaming edges may begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar_rt.errors import nearest
from mstar_rt.graph.edge import StreamingGraphEdge

if TYPE_CHECKING:
    from mstar_rt.graph.names import WalkNames


def check_stream_edges(names: WalkNames) -> None:
    """Raises: GraphError naming the walk, the edge and what to change. The names of both ends are known to be right."""
    feeding: dict[str, StreamingGraphEdge] = {}
    for edge in names.streams.values():
        where = f"has streaming edge {edge.source!r} -> {edge.target!r}"
        producer = _check_source(names, edge, where)
        consumer = _check_target(names, edge, where)
        _check_between(names, producer, consumer, where)
        other = feeding.setdefault(consumer, edge)
        _check_alike(names, edge, other, f"has stream loop {consumer!r}")
    for name, loop in names.loops.items():
        if loop.is_stream and name not in feeding:
            raise names.error(
                f"has stream loop {name!r}, but no streaming edge ends inside it, "
                f'give the walk one: edges=(StreamingGraphEdge("...", "...", policy),)'
            )


def _check_source(names: WalkNames, edge: StreamingGraphEdge, where: str) -> str:
    """The loop whose iterations give the items."""
    source = edge.source.split(".")[0]
    if source in names.loops:
        raise names.error(f"{where} from loop {source!r}, expected a node inside a loop: its items are what that gives")
    if not names.around[source]:
        raise names.error(f"{where} from a node that is in no loop and gives one value, use a GraphEdge")
    return names.around[source][-1]


def _check_target(names: WalkNames, edge: StreamingGraphEdge, where: str) -> str:
    """The stream loop that the edge feeds."""
    target = edge.target.split(".")[0]
    around = names.around[target]
    if around and names.loops[around[-1]].is_stream:
        return around[-1]
    streams = [name for name in around if names.loops[name].is_stream]
    if streams:
        raise names.error(
            f"{where} to a node of the inner loop {around[-1]!r}, expected one directly inside the "
            f"stream loop {streams[-1]!r}"
        )
    if around:
        raise names.error(f"{where} to a node of loop {around[-1]!r}, which is no StreamLoop, {_known(names)}")
    raise names.error(f"{where} to a node that is in no StreamLoop, {_known(names)}")


def _check_between(names: WalkNames, producer: str, consumer: str, where: str) -> None:
    if producer == consumer:
        raise names.error(f"{where} within loop {producer!r}, where nodes read each other's values: use a GraphEdge")
    for outer, inner in ((producer, consumer), (consumer, producer)):
        if outer in names.around[inner]:
            raise names.error(
                f"{where} from loop {producer!r} to {consumer!r}, one of which is inside the other, "
                f"expected two loops side by side"
            )
    here, there = (" in ".join(reversed(names.around[loop])) or "no loop" for loop in (producer, consumer))
    if here != there:
        raise names.error(
            f"{where} from loop {producer!r}, which is in {here}, to {consumer!r}, which is in {there}, "
            f"expected the same loops around both"
        )


def _check_alike(names: WalkNames, edge: StreamingGraphEdge, other: StreamingGraphEdge, where: str) -> None:
    """All that ends in one stream loop must form its chunks at the same items."""
    loops = [names.around[each.source.split(".")[0]][-1] for each in (other, edge)]
    if loops[0] != loops[1]:
        raise names.error(
            f"{where} fed by {other.source!r} of loop {loops[0]!r} and by {edge.source!r} of loop {loops[1]!r}, "
            f"expected one loop: give each a stream loop of its own"
        )
    if edge.policy != other.policy:
        raise names.error(
            f"{where} fed by {other.source!r} with {other.policy!r} and by {edge.source!r} with {edge.policy!r}, "
            f"expected equal policies"
        )


def _known(names: WalkNames) -> str:
    loops = [name for name, loop in names.loops.items() if loop.is_stream]
    return nearest("", loops) if loops else "the walk has none: StreamLoop(name, body)"
