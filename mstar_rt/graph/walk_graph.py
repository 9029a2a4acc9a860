"""`WalkGraph`: the nodes of a model and the walks over them, checked when the model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mstar_rt.errors import GraphError, NotFound, nearest
from mstar_rt.graph.binding import BoundWalk, bind_walk
from mstar_rt.graph.cache_order import check_cache_order
from mstar_rt.graph.liveness import check_alive
from mstar_rt.graph.node import GraphNode
from mstar_rt.graph.stream_order import check_stream_order
from mstar_rt.graph.walk import Walk


@dataclass(frozen=True)
class WalkGraph:
    """Immutable and shared by all requests: it holds no state of any of them.

    Raises: GraphError from the constructor, naming the walk, the node and the nearest right name.
    """

    nodes: tuple[GraphNode, ...]
    walks: tuple[Walk, ...]
    _bound: Mapping[str, BoundWalk] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "walks", tuple(self.walks))
        _check_unique("node", [node.name for node in self.nodes])
        _check_unique("walk", [walk.name for walk in self.walks])
        if not self.walks:
            raise GraphError("the graph has no walks, expected at least one")
        bound = {walk.name: self._checked(walk) for walk in self.walks}
        self._check_all_used(bound.values())
        object.__setattr__(self, "_bound", bound)

    def node(self, name: str) -> GraphNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise NotFound(f"the graph has no node {name!r}, {nearest(name, (node.name for node in self.nodes))}")

    def walk(self, name: str) -> Walk:
        return self.bound(name).walk

    def bound(self, name: str) -> BoundWalk:
        """The walk with every input resolved to its source."""
        if name not in self._bound:
            raise NotFound(f"the graph has no walk {name!r}, {nearest(name, self._bound)}")
        return self._bound[name]

    def inputs(self, walk: str) -> tuple[str, ...]:
        """The names that must be given when `walk` starts, in the order in which they are first read."""
        return self.bound(walk).inputs

    def _checked(self, walk: Walk) -> BoundWalk:
        bound = bind_walk(walk)
        known = {node.name: node for node in self.nodes}
        for placed in bound.uses:
            node = placed.use.node
            if node.name not in known:
                raise GraphError(
                    f"walk {walk.name!r} uses node {node.name!r}, which the graph does not list, "
                    f"{nearest(node.name, known)}"
                )
            if node != known[node.name]:
                raise GraphError(f"walk {walk.name!r} uses a node {node.name!r} that is not equal to the graph's")
        check_stream_order(bound)
        check_alive(bound)
        check_cache_order(bound)
        return bound

    def _check_all_used(self, bound: Iterable[BoundWalk]) -> None:
        used = {placed.use.node.name for walk in bound for placed in walk.uses}
        for node in self.nodes:
            if node.name not in used:
                raise GraphError(f"node {node.name!r} is in no walk of the graph, use it or remove it")


def _check_unique(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"the graph has two {kind}s of the name {name!r}, every {kind} needs a name of its own")
