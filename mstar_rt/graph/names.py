"""The names of one walk: its node uses and loops, what each produces, explicit edges, and who may leave a
loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstar_rt.errors import GraphError, nearest
from mstar_rt.graph.edge import GraphEdge, StreamingGraphEdge
from mstar_rt.graph.node import NodeUse
from mstar_rt.graph.section import Loop, Section
from mstar_rt.graph.source import Collected, NodeOutput
from mstar_rt.graph.stream_edges import check_stream_edges
from mstar_rt.graph.walk import Walk

Producer = NodeOutput | Collected


def uses_of(section: Section) -> Iterator[NodeUse]:
    """All node uses inside a section, in the order of writing."""
    if isinstance(section, NodeUse):
        yield section
    elif isinstance(section, Loop):
        yield from uses_of(section.body)
    else:
        for part in section.sections:
            yield from uses_of(part)


class WalkNames:
    """Raises GraphError for whatever a name of the walk's own can get wrong, before any tensor is looked up.

    `around` maps every use and loop to the loops around it, outermost first, in the order of writing;
    `produced` maps them to {slot: tensor name}; `edges` maps an input "use.slot" to the producer that an
    explicit edge gives it, `streams` to the streaming edge that ends there.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.around: dict[str, tuple[str, ...]] = {}
        self.produced: dict[str, dict[str, str]] = {}
        self.loops: dict[str, Loop] = {}
        self.edges: dict[str, Producer] = {}
        self.streams: dict[str, StreamingGraphEdge] = {}
        self._register(walk.body, ())
        for loop in self.loops.values():
            self._check_leave(loop)
        self._register_edges()
        check_stream_edges(self)

    def error(self, what: str) -> GraphError:
        return GraphError(f"walk {self.walk.name!r} {what}")

    def producer(self, end: str, where: str) -> Producer:
        """What "use.slot" or "loop.collected" names; `where` begins the message if there is no such thing."""
        owner, slot = end.split(".")
        if owner not in self.around:
            raise self.error(f"{where} of an unknown node {owner!r}, {nearest(owner, self.around)}")
        kind = "loop" if owner in self.loops else "node"
        slots = self.produced[owner]
        if slot not in slots:
            gives = "collected name" if kind == "loop" else "output"
            raise self.error(f"{where}, but {kind} {owner!r} has no {gives} {slot!r}, {nearest(slot, slots)}")
        return Collected(owner, slot) if owner in self.loops else NodeOutput(owner, slot)

    def selected(self, names: Iterable[str], verb: str) -> dict[str, Producer]:
        """The emitted or persisted tensors, by the names under which they go out."""
        selected: dict[str, Producer] = {}
        for name in names:
            tensor, producer = self._select(name, f"{verb} {name!r}")
            if tensor in selected:
                raise self.error(f"{verb} two tensors named {tensor!r}, bind one of them to another name")
            selected[tensor] = producer
        return selected

    def _select(self, name: str, where: str) -> tuple[str, Producer]:
        if "." in name:
            owner, slot = name.split(".")
            producer = self.producer(name, where)
            return self.produced[owner][slot], producer
        tensors = [(f"{owner}.{s}", t) for owner, slots in self.produced.items() for s, t in slots.items()]
        ends = [end for end, tensor in tensors if tensor == name]
        if not ends:
            known = {tensor for _, tensor in tensors}
            raise self.error(f"{where}, which no node of it produces, {nearest(name, known)}")
        if len(ends) > 1:
            raise self.error(f"{where}, which has {len(ends)} producers, say which: {' or '.join(ends)}")
        return name, self.producer(ends[0], where)

    def _register(self, section: Section, loops: tuple[str, ...]) -> None:
        if isinstance(section, NodeUse):
            slots = zip(section.node.outputs, section.tensors_out, strict=True)
            self._add(section.name, loops, dict(slots))
        elif isinstance(section, Loop):
            self._add(section.name, loops, {name: name for _, name in section.collect})
            self.loops[section.name] = section
            self._register(section.body, (*loops, section.name))
        else:
            for part in section.sections:
                self._register(part, loops)

    def _add(self, name: str, loops: tuple[str, ...], produced: dict[str, str]) -> None:
        if name in self.around:
            raise self.error(f"uses the name {name!r} twice, give every use of a node its own (alias=)")
        self.around[name] = loops
        self.produced[name] = produced

    def _check_leave(self, loop: Loop) -> None:
        """It must run exactly once per iteration, so it stands in the body itself."""
        leave = loop.leave_node
        if leave is None:
            return
        inside = (*self.around[loop.name], loop.name)
        body = [use.name for use in uses_of(loop.body) if self.around[use.name] == inside]
        if leave in body:
            return
        where = f"has loop {loop.name!r} with leave={leave!r}"
        around = self.around.get(leave, ())
        if around[: len(inside)] == inside:
            inner = leave if leave in self.loops else around[len(inside)]
            why = f"which is not a node that runs once per iteration but belongs to the inner loop {inner!r}"
        else:
            why = "which is no node of its body"
        raise self.error(f"{where}, {why}, {nearest(leave, body)}")

    def _register_edges(self) -> None:
        for edge in self.walk.edges:
            where = f"has edge {edge.source!r} -> {edge.target!r}"
            producer = self.producer(edge.source, f"{where} from an output")
            self._check_target(edge.target, where)
            if edge.target in self.edges or edge.target in self.streams:
                raise self.error(f"has two edges into {edge.target!r}, an input has one producer")
            self._check_forwards(edge, where)
            if isinstance(edge, StreamingGraphEdge):
                self.streams[edge.target] = edge
            else:
                self.edges[edge.target] = producer

    def _check_target(self, end: str, where: str) -> None:
        target, slot = end.split(".")
        slots = {use.name: use.node.inputs for use in uses_of(self.walk.body)}
        if target not in slots:
            raise self.error(f"{where} to an unknown node {target!r}, {nearest(target, slots)}")
        if slot not in slots[target]:
            hint = nearest(slot, slots[target])
            raise self.error(f"{where}, but node {target!r} has no input {slot!r}, {hint}")

    def _check_forwards(self, edge: GraphEdge | StreamingGraphEdge, where: str) -> None:
        order = list(self.around)
        source, target = edge.source.split(".")[0], edge.target.split(".")[0]
        if order.index(source) >= order.index(target) or source in self.around[target]:
            raise self.error(f"{where} that flows backwards, only the carry of a loop may do that")
