"""A walk as an indented tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.drawing.captions import (
    emitted_by,
    inputs_of,
    loop_title,
    outputs_of,
    parts_of,
    persisted_by,
    renaming,
    use_title,
)
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Section, Sequential


def draw_text(walks: Sequence[BoundWalk]) -> str:
    return "\n\n".join("\n".join(_walk_lines(bound)) for bound in walks) + "\n"


def _walk_lines(bound: BoundWalk) -> Iterator[str]:
    yield f"walk {bound.walk.name}"
    for what, names in (
        ("inputs", bound.inputs),
        ("emits", [name for name, _ in bound.emits]),
        ("persists", [name for name, _ in bound.persists]),
    ):
        if names:
            yield f"  {what + ':':<9} {', '.join(names)}"
    yield from _section_lines(bound, bound.walk.body, "", "")


def _section_lines(bound: BoundWalk, section: Section, first: str, rest: str) -> Iterator[str]:
    """`first` is put before the first line of the section and `rest` before all others."""
    if isinstance(section, NodeUse):
        yield first + _use_line(bound, section)
        return
    if isinstance(section, Loop):
        yield first + loop_title(bound, section)
        yield from (f"{rest}│  {line}" for line in _loop_notes(bound, section))
        parts = parts_of(section.body) if isinstance(section.body, Sequential) else [section.body]
    else:
        yield first + type(section).__name__.lower()
        parts = parts_of(section)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        corner, bar = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _section_lines(bound, part, rest + corner, rest + bar)


def _use_line(bound: BoundWalk, use: NodeUse) -> str:
    placed = next(placed for placed in bound.uses if placed.use.name == use.name)
    reads, gives = ", ".join(inputs_of(bound, placed)), ", ".join(outputs_of(use))
    cache = f" [{use.node.cache}]" if use.node.cache else ""
    return f"{use_title(use)}{cache}: {reads or '()'} -> {gives or '()'}{_destinations(bound, use.name)}"


def _loop_notes(bound: BoundWalk, loop: Loop) -> Iterator[str]:
    if loop.carry:
        yield "carries " + ", ".join(renaming(name, output) for name, output in loop.carry)
    if loop.collect:
        collected = ", ".join(f"{name}=[{output}]" for output, name in loop.collect)
        yield f"collects {collected}{_destinations(bound, loop.name)}"


def _destinations(bound: BoundWalk, owner: str) -> str:
    emitted, persisted = emitted_by(bound, owner), persisted_by(bound, owner)
    text = f"  > emits {', '.join(emitted)}" if emitted else ""
    return text + (f"  > persists {', '.join(persisted)}" if persisted else "")
