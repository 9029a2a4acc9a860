"""`Route`: where one request runs, once a replica of every group is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mstar_rt.program import Program


@dataclass(frozen=True)
class WalkPlan:
    """One walk of a route.

    `node_ranks[i]` runs program node i; `ranks` take part. `inputs` are the walk inputs that each of them reads,
    `persists` the rank where each persisted tensor stays, `caches` the ranks with nodes of each cache that outlives the
    walk, in the order of their last such node, so that the newest copy comes last.
    """

    node_ranks: tuple[int, ...]
    ranks: tuple[int, ...]
    inputs: Mapping[int, tuple[str, ...]]
    persists: Mapping[str, int]
    caches: Mapping[str, tuple[int, ...]]


class Route:
    """The walks of a model for one choice of replicas; shared by all requests of that choice."""

    def __init__(
        self,
        model: str,
        choices: tuple[int, ...],
        programs: Mapping[str, Program],
        node_ranks: Mapping[str, tuple[int, ...]],
        cache_lifetimes: Mapping[str, str],
    ) -> None:
        self.model = model
        self.choices = choices
        self._plans = {
            walk: plan_walk(program, node_ranks[walk], cache_lifetimes) for walk, program in programs.items()
        }

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that any walk of the route needs."""
        return tuple(sorted({rank for plan in self._plans.values() for rank in plan.ranks}))

    def walk(self, name: str) -> WalkPlan:
        return self._plans[name]


def plan_walk(program: Program, node_ranks: tuple[int, ...], cache_lifetimes: Mapping[str, str]) -> WalkPlan:
    ranks = tuple(sorted(set(node_ranks)))
    inputs: dict[int, dict[str, None]] = {rank: {} for rank in ranks}
    for edge in program.edges:
        if edge.source is None:
            inputs[node_ranks[edge.target]][edge.source_slot] = None
    caches: dict[str, list[int]] = {}
    for node in sorted(program.nodes, key=lambda node: node.order, reverse=True):
        cache = node.node.cache
        if cache is not None and cache_lifetimes.get(cache, "walk") != "walk":
            caches.setdefault(cache, []).append(node_ranks[node.index])
    return WalkPlan(
        node_ranks=node_ranks,
        ranks=ranks,
        inputs={rank: tuple(names) for rank, names in inputs.items()},
        persists={name: node_ranks[node] for name, node in persisting_nodes(program)},
        caches={cache: tuple(dict.fromkeys(holders))[::-1] for cache, holders in caches.items()},
    )


def persisting_nodes(program: Program) -> Iterator[tuple[str, int]]:
    """(persisted name, the node that produces it)."""
    for node in program.nodes:
        ports = [port for _, port in node.outputs]
        while ports:
            port = program.ports[ports.pop()]
            yield from ((name, node.index) for name in port.persists)
            ports += [*port.exits, *port.collects]
