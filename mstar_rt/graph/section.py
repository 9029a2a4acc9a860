"""How nodes are composed: one after another, side by side, and in loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from mstar_rt.errors import GraphError
from mstar_rt.graph.node import GraphNode, NodeUse, check_name

Section = Union[NodeUse, "Sequential", "Parallel", "Loop"]
Part = Union[GraphNode, Section]


def as_section(part: object, where: str) -> Section:
    """`part` as a section; a bare node is a use of it under its own name."""
    if isinstance(part, GraphNode):
        return part.bind()
    if isinstance(part, NodeUse | Sequential | Parallel | Loop):
        return part
    raise GraphError(f"{where} holds {part!r}, expected a node or a section")


@dataclass(frozen=True, init=False)
class Sequential:
    """Each section sees the outputs of those before it; of equal names, the nearest one."""

    sections: tuple[Section, ...]

    def __init__(self, *sections: Part) -> None:
        object.__setattr__(self, "sections", _sections(sections, "Sequential"))


@dataclass(frozen=True, init=False)
class Parallel:
    """All sections see the same tensors and none sees another's; what follows sees the outputs of all."""

    sections: tuple[Section, ...]

    def __init__(self, *sections: Part) -> None:
        object.__setattr__(self, "sections", _sections(sections, "Parallel"))


@dataclass(frozen=True, init=False)
class Loop:
    """Runs its body `times` times, at most `limit`.

    `times` is a number, or the name of an integer request parameter that is bound when a request starts (1 <=
    times <= limit). `carry` {input: output}: in iteration 0 the body reads `input` from upstream (or from the
    walk's inputs), afterwards it reads what the iteration before gave as `output`. `collect` {output:
    collected}: the values of all iterations in order, as a list, under a new name. Everything else of
    upstream stays visible in every iteration. Downstream sees the body's outputs with their values of the
    last iteration.

    A body node that reads nothing of its own iteration is ready in all iterations at once: a loop that
    carries nothing is a map.
    """

    name: str
    body: Section
    times: int | str | None
    limit: int | None
    carry: tuple[tuple[str, str], ...]
    collect: tuple[tuple[str, str], ...]

    def __init__(
        self,
        name: str,
        body: Part,
        times: int | str,
        limit: int | None = None,
        carry: Mapping[str, str] | None = None,
        collect: Mapping[str, str] | None = None,
    ) -> None:
        _set_loop(self, name, body, carry, collect)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "limit", limit)
        _check_bound(self)

    @property
    def max_times(self) -> int:
        """The largest number of iterations that any request may run; for any loop, BoundWalk.max_times."""
        bound = self.times if isinstance(self.times, int) else self.limit
        assert bound is not None, f"what feeds {self.name!r} bounds it, ask BoundWalk.max_times"
        return bound

    @property
    def is_stream(self) -> bool:
        """Whether chunks of streaming edges say how often it runs."""
        return False

    @property
    def leave_node(self) -> str | None:
        """The node that may end the loop early, None in a plain loop."""
        return None


@dataclass(frozen=True, init=False)
class DynamicLoop(Loop):
    """A Loop that a request may leave early.

    When the node used as `leave` says so on completing iteration v, that iteration completes and none
    follows.
    """

    leave: str

    def __init__(
        self,
        name: str,
        body: Part,
        times: int | str,
        limit: int | None = None,
        carry: Mapping[str, str] | None = None,
        collect: Mapping[str, str] | None = None,
        *,
        leave: str,
    ) -> None:
        super().__init__(name, body, times, limit, carry, collect)
        object.__setattr__(self, "leave", leave)

    @property
    def leave_node(self) -> str | None:
        return self.leave


@dataclass(frozen=True, init=False)
class StreamLoop(Loop):
    """Runs its body once per chunk of the streaming edges that end inside it.

    The iteration of the final chunk is the last one. `times` and `limit` are None: what feeds it sets the number of
    iterations. For the rest it is a Loop: it may carry, collect, emit, nest, and feed another StreamLoop.
    """

    def __init__(
        self,
        name: str,
        body: Part,
        carry: Mapping[str, str] | None = None,
        collect: Mapping[str, str] | None = None,
    ) -> None:
        _set_loop(self, name, body, carry, collect)
        object.__setattr__(self, "times", None)
        object.__setattr__(self, "limit", None)

    @property
    def is_stream(self) -> bool:
        return True


def _set_loop(
    loop: Loop, name: str, body: Part, carry: Mapping[str, str] | None, collect: Mapping[str, str] | None
) -> None:
    check_name(name, "the name of a loop")
    set_field = object.__setattr__
    set_field(loop, "name", name)
    set_field(loop, "body", as_section(body, f"loop {name!r}"))
    set_field(loop, "carry", _pairs(carry, f"carry of loop {name!r}"))
    set_field(loop, "collect", _pairs(collect, f"collect of loop {name!r}"))


def _sections(parts: tuple[Part, ...], where: str) -> tuple[Section, ...]:
    if not parts:
        raise GraphError(f"{where}() is empty, expected at least one node or section")
    return tuple(as_section(part, where) for part in parts)


def _pairs(names: Mapping[str, str] | None, where: str) -> tuple[tuple[str, str], ...]:
    pairs = tuple((names or {}).items())
    for pair in pairs:
        for name in pair:
            check_name(name, f"a tensor in the {where}")
    return pairs


def _check_bound(loop: Loop) -> None:
    where = f"loop {loop.name!r}"
    if loop.limit is not None and (not isinstance(loop.limit, int) or isinstance(loop.limit, bool) or loop.limit < 1):
        raise GraphError(f"{where} has limit {loop.limit!r}, expected an integer of at least 1")
    if isinstance(loop.times, str):
        check_name(loop.times, f"the parameter of {where}")
        if loop.limit is None:
            raise GraphError(f"{where} has no bound: its times are the parameter {loop.times!r}, so it needs a limit")
    elif not isinstance(loop.times, int) or isinstance(loop.times, bool) or loop.times < 1:
        raise GraphError(f"{where} has times {loop.times!r}, expected an integer of at least 1 or a parameter's name")
    elif loop.limit is not None and loop.times > loop.limit:
        raise GraphError(f"{where} runs {loop.times} times, over its own limit {loop.limit}")
