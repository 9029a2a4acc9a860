"""The leaves of a declaration: nodes and their uses in a walk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mstar_rt.errors import GraphError, nearest

ENGINES = ("stateless", "kv_cache")


def check_name(name: object, what: str) -> None:
    """Names are joined by dots in edges and printed in drawings, so they hold neither dots nor spaces."""
    if not isinstance(name, str) or not name or not name.isprintable() or "." in name or " " in name:
        raise GraphError(f"{what} is {name!r}, expected a printable name without dots or spaces")


def check_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    """`names` as a tuple, each a proper name and none twice."""
    if isinstance(names, str):
        raise GraphError(f"{what} are the string {names!r}, expected a tuple of names: ({names!r},)")
    listed = tuple(names)
    for name in listed:
        check_name(name, f"one of {what}")
        if listed.count(name) > 1:
            raise GraphError(f"{what} name {name!r} twice, every name must be there once")
    return listed


@dataclass(frozen=True)
class GraphNode:
    """One component of a model: what it reads, what it gives and the engine that runs it.

    `inputs` and `outputs` are slots; in a walk each is bound to the tensor of the same name unless `bind`
    renames it. `cache` names the paged memory (a KVSpec of the model) that a "kv_cache" node attends over.
    Such a node may have no outputs at all: filling the cache is its effect.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    engine: str = "stateless"
    cache: str | None = None
    doc: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a node")
        where = f"node {self.name!r}"
        object.__setattr__(self, "inputs", check_names(self.inputs, f"the inputs of {where}"))
        object.__setattr__(self, "outputs", check_names(self.outputs, f"the outputs of {where}"))
        if self.engine not in ENGINES:
            raise GraphError(f"{where} has engine {self.engine!r}, {nearest(self.engine, ENGINES)}")
        if self.engine == "kv_cache" and self.cache is None:
            raise GraphError(f"{where} has engine 'kv_cache' but no cache, name the cache that it attends over")
        if self.engine != "kv_cache" and self.cache is not None:
            raise GraphError(f"{where} has cache {self.cache!r} but engine {self.engine!r}, expected 'kv_cache'")
        if not self.outputs and self.cache is None:
            raise GraphError(f"{where} has no outputs and no cache, so running it could have no effect")

    def bind(
        self,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        alias: str | None = None,
    ) -> NodeUse:
        """A use of this node under the name `alias`, with slots bound to tensors of other names."""
        return NodeUse(
            self,
            _renamed(self.inputs, inputs or {}, f"node {self.name!r} has no input"),
            _renamed(self.outputs, outputs or {}, f"node {self.name!r} has no output"),
            self.name if alias is None else alias,
        )


@dataclass(frozen=True)
class NodeUse:
    """A node at one place of a walk; `tensors_in[i]` is the tensor that input slot i reads."""

    node: GraphNode
    tensors_in: tuple[str, ...]
    tensors_out: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, f"an alias of node {self.node.name!r}")
        for tensor in self.tensors_in:
            check_name(tensor, f"a tensor read by {self.name!r}")
        check_names(self.tensors_out, f"the tensors that {self.name!r} produces")


def _renamed(slots: tuple[str, ...], names: Mapping[str, str], unknown: str) -> tuple[str, ...]:
    for slot in names:
        if slot not in slots:
            raise GraphError(f"{unknown} {slot!r}, {nearest(slot, slots)}")
    return tuple(names.get(slot, slot) for slot in slots)
