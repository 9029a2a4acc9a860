"""What a run hands out: firings to execute, emissions to deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.graph import GraphNode


@dataclass(slots=True, eq=False)
class Firing:
    """One turn of one node: all its inputs are there. Every firing must be completed once, unless the run is
    dropped.

    `iteration` has one entry per loop around the node, outermost first. `order` is the node's topological
    position. Compared by identity.
    """

    node_index: int
    name: str
    node: GraphNode
    iteration: tuple[int, ...]
    inputs: Mapping[str, Any]
    order: int


@dataclass(slots=True)
class Emission:
    """One value for the client; `iteration` is that of the producer."""

    name: str
    iteration: tuple[int, ...]
    value: Any


@dataclass(slots=True)
class Send:
    """Something that the part of the same walk on `rank` has to be told: WalkRun.receive takes it, in any order.

    What `index` names and `tag` says depends on `kind`:

        "value"     a port; the tag of the value
        "decision"  a loop; the iteration, `flag` if it is the last one
        "item"      a stream; the iteration of its producer, `flag` if it is the last one
        "credit"    a stream; the loops around it and the number of credits before this one, `flag` if no more will come
                    (such a message is no credit itself)

    `moves` are the caches whose sequences must be on that rank before the value is read.
    """

    rank: int
    kind: str
    index: int
    tag: tuple[int, ...]
    value: Any = None
    flag: bool = False
    moves: tuple[str, ...] = ()


@dataclass(slots=True)
class Progress:
    """What completing a firing, or something received, brought about; `finished` is True once, with the last that this
    rank has to do in the walk."""

    ready: list[Firing] = field(default_factory=list)
    emitted: list[Emission] = field(default_factory=list)
    finished: bool = False
    sends: list[Send] = field(default_factory=list)
