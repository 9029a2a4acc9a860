"""Drawings of a walk graph: a tree as text, a Mermaid flowchart, an SVG picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mstar_rt.errors import InvalidArgument, nearest
from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.drawing.mermaid import draw_mermaid
from mstar_rt.graph.drawing.svg import draw_svg
from mstar_rt.graph.drawing.text import draw_text
from mstar_rt.graph.walk_graph import WalkGraph

FORMATS: dict[str, Callable[[Sequence[BoundWalk]], str]] = {
    "text": draw_text,
    "mermaid": draw_mermaid,
    "svg": draw_svg,
}


def draw(graph: WalkGraph, walk: str | None = None, format: str = "text") -> str:  # noqa: A002
    """One walk, or all walks of `graph`, as "text", "mermaid" or "svg" (a whole file, self-contained).

    Raises: NotFound for an unknown walk, InvalidArgument for an unknown format.
    """
    if format not in FORMATS:
        raise InvalidArgument(f"unknown drawing format {format!r}, {nearest(format, FORMATS)}")
    names = [walk] if walk is not None else [each.name for each in graph.walks]
    return FORMATS[format]([graph.bound(name) for name in names])


__all__ = ["FORMATS", "draw"]
