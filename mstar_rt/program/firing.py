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
class Progress:
    """What completing a firing brought about; `finished` is True once, with the last completion of a walk."""

    ready: list[Firing] = field(default_factory=list)
    emitted: list[Emission] = field(default_factory=list)
    finished: bool = False
