"""Where a node of a model runs, as clients are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodePlace:
    """A node in some of its model's walks: one of `ranks` runs it for a request, in `dtype`."""

    node: str
    walks: tuple[str, ...]
    ranks: tuple[int, ...]
    dtype: str
