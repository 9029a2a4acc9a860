"""A walk as a picture: sections laid out as nested boxes, in one self-contained SVG file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.drawing.boxes import FAINT, FONT_SIZE, Box, Line, card, frame, row, stack
from mstar_rt.graph.drawing.captions import (
    emitted_by,
    inputs_of,
    loop_bound,
    loop_name,
    outputs_of,
    parts_of,
    persisted_by,
    renaming,
    use_title,
)
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Parallel, Section

MAX_CHARS = 44
MARGIN = 16
STATELESS = ("#e9f1fc", "#5b86c4")
CACHED = ("#fdf0dd", "#c9842b")
LOOP = ("#f5f7f9", "#8c9aa8")
DYNAMIC_LOOP = ("#f6f2fb", "#8f74b5")
STREAM_LOOP = ("#eef8f6", "#3d9486")
INPUT = ("#ffffff", "#8c9aa8")
EMIT_COLOR = "#1d7a46"
PERSIST_COLOR = "#8a4b9c"


def draw_svg(walks: Sequence[BoundWalk]) -> str:
    boxes = [_walk_box(bound) for bound in walks]
    width = max(box.width for box in boxes) + 2 * MARGIN
    height = sum(box.height + MARGIN for box in boxes) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="ui-monospace, Menlo, Consolas, monospace" '
        f'font-size="{FONT_SIZE}">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{FAINT}"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    y: float = MARGIN
    for box in boxes:
        lines += box.draw(MARGIN, y)
        y += box.height + MARGIN
    return "\n".join([*lines, "</svg>"]) + "\n"


def _walk_box(bound: BoundWalk) -> Box:
    parts = [_section_box(bound, bound.walk.body)]
    if bound.inputs:
        parts.insert(0, card(list(_wrapped("inputs", bound.inputs)), *INPUT, radius=14))
    return frame(stack(parts), [Line(f"walk {bound.walk.name}", bold=True)], "#ffffff", "#c5ced6", turns=False)


def _section_box(bound: BoundWalk, section: Section) -> Box:
    if isinstance(section, NodeUse):
        return card(list(_use_lines(bound, section)), *(CACHED if section.node.cache else STATELESS))
    if isinstance(section, Loop):
        colors = STREAM_LOOP if section.is_stream else LOOP if section.leave_node is None else DYNAMIC_LOOP
        title = list(_loop_lines(bound, section))
        return frame(_section_box(bound, section.body), title, *colors, turns=bool(section.carry))
    boxes = [_section_box(bound, part) for part in parts_of(section)]
    return row(boxes) if isinstance(section, Parallel) else stack(boxes)


def _use_lines(bound: BoundWalk, use: NodeUse) -> Iterator[Line]:
    placed = next(placed for placed in bound.uses if placed.use.name == use.name)
    yield Line(use_title(use), bold=True)
    if use.node.cache:
        yield Line(f"cache {use.node.cache}", CACHED[1])
    yield from _wrapped("in", inputs_of(bound, placed))
    yield from _wrapped("out", outputs_of(use))
    yield from _destinations(bound, use.name)


def _loop_lines(bound: BoundWalk, loop: Loop) -> Iterator[Line]:
    yield Line(loop_name(loop), bold=True)
    yield from (Line(line, FAINT) for line in textwrap.wrap(loop_bound(bound, loop), MAX_CHARS, break_long_words=False))
    yield from _wrapped("carries", [renaming(name, output) for name, output in loop.carry])
    yield from _wrapped("collects", [f"{name}=[{output}]" for output, name in loop.collect])
    yield from _destinations(bound, loop.name)


def _destinations(bound: BoundWalk, producer: str) -> Iterator[Line]:
    yield from _wrapped("emits", emitted_by(bound, producer), EMIT_COLOR)
    yield from _wrapped("persists", persisted_by(bound, producer), PERSIST_COLOR)


def _wrapped(label: str, names: Sequence[str], color: str = FAINT) -> Iterator[Line]:
    """Nothing for no names, else "label a, b" in as many lines as that takes."""
    if names:
        indent = " " * (len(label) + 1)
        content = f"{label} {', '.join(names)}"
        for line in textwrap.wrap(content, MAX_CHARS, subsequent_indent=indent, break_long_words=False):
            yield Line(line, color)
