"""One named way through a model."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import GraphError
from mstar_rt.graph.edge import GraphEdge, StreamingGraphEdge
from mstar_rt.graph.node import check_name
from mstar_rt.graph.section import Part, Section, as_section


@dataclass(frozen=True, init=False)
class Walk:
    """A walk over the graph.

    `emit` and `persist` are tensor names, or "node.slot" (or "loop.collected") where several nodes produce
    the name; the tensor goes out under its bare name either way. Emitted tensors go to the client as they are
    produced, one per iteration of the loops around their producer. Persisted ones are kept for later walks,
    with the value of the last iteration. Inputs that nothing upstream produces are the walk's inputs.
    """

    name: str
    body: Section
    emit: tuple[str, ...]
    persist: tuple[str, ...]
    edges: tuple[GraphEdge | StreamingGraphEdge, ...]

    def __init__(
        self,
        name: str,
        body: Part,
        emit: tuple[str, ...] = (),
        persist: tuple[str, ...] = (),
        edges: tuple[GraphEdge | StreamingGraphEdge, ...] = (),
    ) -> None:
        check_name(name, "the name of a walk")
        where = f"walk {name!r}"
        if isinstance(edges, GraphEdge | StreamingGraphEdge):
            raise GraphError(f"{where} has edges={edges!r}, expected a tuple of edges: write edges=(...,)")
        for edge in edges:
            if not isinstance(edge, GraphEdge | StreamingGraphEdge):
                what = f"{where} has {edge!r} among its edges"
                raise GraphError(f"{what}, expected a GraphEdge or a StreamingGraphEdge")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "body", as_section(body, where))
        object.__setattr__(self, "emit", _tensor_names(emit, f"{where} emits"))
        object.__setattr__(self, "persist", _tensor_names(persist, f"{where} persists"))
        object.__setattr__(self, "edges", tuple(edges))


def _tensor_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise GraphError(f"{where} the string {names!r}, expected a tuple of names: ({names!r},)")
    for name in names:
        if not isinstance(name, str) or not all(name.split(".")) or name.count(".") > 1:
            raise GraphError(f"{where} {name!r}, expected 'tensor' or 'node.slot'")
    return tuple(names)
