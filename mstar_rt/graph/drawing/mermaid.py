"""A walk as a Mermaid flowchart: loops are subgraphs, dotted arrows lead to the next iteration, thick ones stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstar_rt.graph.binding import BoundWalk
from mstar_rt.graph.drawing.captions import loop_title, use_title
from mstar_rt.graph.drawing.links import Link, links_of
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Section
from mstar_rt.graph.source import Source, owner


def draw_mermaid(walks: Sequence[BoundWalk]) -> str:
    lines = ["flowchart TD", "  classDef cache fill:#fdf0dd,stroke:#c9842b"]
    for index, bound in enumerate(walks):
        lines += _Flowchart(bound, f"w{index}").lines()
    return "\n".join(lines) + "\n"


class _Flowchart:
    """Ids are made from positions, so any name may be drawn."""

    def __init__(self, bound: BoundWalk, prefix: str) -> None:
        self.bound, self.prefix = bound, prefix
        self.use_ids = {placed.use.name: f"{prefix}n{placed.position}" for placed in bound.uses}
        self.loop_ids = {around.loop.name: f"{prefix}l{i}" for i, around in enumerate(bound.loops)}
        self.input_ids = {name: f"{prefix}i{index}" for index, name in enumerate(bound.inputs)}

    def lines(self) -> Iterator[str]:
        yield f"  subgraph {self.prefix}[{_quoted('walk ' + self.bound.walk.name)}]"
        yield from (f"    {self.input_ids[name]}([{_quoted(name)}])" for name in self.bound.inputs)
        yield from self._section(self.bound.walk.body, "    ")
        yield from self._ends("e", self.bound.emits, "emit")
        yield from self._ends("p", self.bound.persists, "persist")
        yield "  end"
        yield from self._arrows()

    def _section(self, section: Section, indent: str) -> Iterator[str]:
        if isinstance(section, NodeUse):
            mark = ":::cache" if section.node.cache else ""
            yield f"{indent}{self.use_ids[section.name]}[{_quoted(use_title(section))}]{mark}"
        elif isinstance(section, Loop):
            yield f"{indent}subgraph {self.loop_ids[section.name]}[{_quoted(loop_title(self.bound, section))}]"
            yield from self._section(section.body, indent + "  ")
            yield f"{indent}end"
        else:
            for part in section.sections:
                yield from self._section(part, indent)

    def _ends(self, letter: str, ends: Sequence[tuple[str, Source]], verb: str) -> Iterator[str]:
        for index, (name, source) in enumerate(ends):
            producer = (self.use_ids | self.loop_ids)[owner(source)]
            yield f"    {producer} --> {self.prefix}{letter}{index}([{_quoted(f'{verb} {name}')}])"

    def _arrows(self) -> Iterator[str]:
        """Tensors that go the same way share an arrow."""
        tensors: dict[tuple[str, str, str, str], list[str]] = {}
        for link in links_of(self.bound):
            arrow = "==>" if link.policy else "-.->" if link.back else "-->"
            way = (self._source_id(link), arrow, self.use_ids[link.target], link.policy)
            tensors.setdefault(way, []).append(link.tensor)
        for (source, arrow, target, policy), names in tensors.items():
            label = ", ".join([*dict.fromkeys(names), *([policy] if policy else [])])
            yield f"  {source} {arrow}|{_quoted(label)}| {target}"

    def _source_id(self, link: Link) -> str:
        return self.input_ids[link.source] if link.is_input else self.use_ids[link.source]


def _quoted(text: str) -> str:
    """A Mermaid string: everything that its grammar or HTML could read otherwise as a character code."""
    return '"' + "".join(c if c.isalnum() or c in " _-.,:()=[]/+" else f"#{ord(c)};" for c in text) + '"'
