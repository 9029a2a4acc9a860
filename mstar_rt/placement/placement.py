"""`Placement`: what a deployment's rules say, resolved; immutable but for the routes that it remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mstar_rt.placement.route import Route
from mstar_rt.program import Program

Ranks = tuple[int, ...]
"""Where one node use may run, in rising order; of several, every request uses one."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Node uses of one model that a request runs on one and the same of `ranks`.

    `sticky`: what the nodes keep outlives requests (a cache of lifetime "session", persisted tensors), so a session
    stays with its first choice. `uses` are (walk, use) pairs.
    """

    ranks: Ranks
    sticky: bool
    uses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ModelPlacement:
    """One model. `ranks[walk][i]` are the ranks of program node i of the walk."""

    programs: Mapping[str, Program]
    cache_lifetimes: Mapping[str, str]
    ranks: Mapping[str, tuple[Ranks, ...]]
    groups: tuple[ReplicaGroup, ...]


class Placement:
    """Who may run what. Made by `place`, which refuses what cannot work."""

    def __init__(self, models: Mapping[str, ModelPlacement]) -> None:
        self._models = models
        self._routes: dict[tuple[str, tuple[int, ...]], Route] = {}

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def ranks_of(self, model: str) -> Ranks:
        """All ranks that any request to the model may need, in rising order."""
        placed = self._models[model].ranks.values()
        return tuple(sorted({rank for uses in placed for ranks in uses for rank in ranks}))

    def models_on(self, rank: int) -> tuple[str, ...]:
        return tuple(model for model in self._models if rank in self.ranks_of(model))

    def nodes_on(self, model: str, rank: int) -> tuple[str, ...]:
        """Names of the nodes (not of their uses) whose code the rank has to build, in the order of the walks."""
        placed = self._models[model]
        names = [
            use.node.name
            for walk, program in placed.programs.items()
            for use in program.nodes
            if rank in placed.ranks[walk][use.index]
        ]
        return tuple(dict.fromkeys(names))

    def groups(self, model: str) -> tuple[ReplicaGroup, ...]:
        """The model's replica groups; a route makes one choice for each, in this order."""
        return self._models[model].groups

    def places(self, model: str) -> tuple[Ranks, ...]:
        """The sets of ranks that node uses have: a request needs one rank of each."""
        placed = self._models[model].ranks.values()
        return tuple(dict.fromkeys(ranks for uses in placed for ranks in uses))

    def program(self, model: str, walk: str) -> Program:
        return self._models[model].programs[walk]

    def walks(self, model: str) -> tuple[str, ...]:
        return tuple(self._models[model].programs)

    def use_ranks(self, model: str, walk: str) -> tuple[Ranks, ...]:
        """The ranks of every program node of the walk."""
        return self._models[model].ranks[walk]

    def cache_lifetime(self, model: str, cache: str) -> str:
        return self._models[model].cache_lifetimes.get(cache, "walk")

    def readers(self, model: str, walks: Iterable[str]) -> dict[str, Ranks]:
        """The ranks that may read each input of these walks, whatever replicas are chosen."""
        placed = self._models[model]
        readers: dict[str, set[int]] = {}
        for walk in walks:
            for edge in placed.programs[walk].edges:
                if edge.source is None:
                    readers.setdefault(edge.source_slot, set()).update(placed.ranks[walk][edge.target])
        return {name: tuple(sorted(ranks)) for name, ranks in readers.items()}

    def route(self, model: str, choices: tuple[int, ...]) -> Route:
        """Where one request runs. `choices` has an index into `ranks` for each of the model's groups."""
        route = self._routes.get((model, choices))
        if route is None:
            route = self._routes[model, choices] = self._new_route(model, choices)
        return route

    def _new_route(self, model: str, choices: tuple[int, ...]) -> Route:
        placed = self._models[model]
        assert len(choices) == len(placed.groups), "one choice for each group"
        chosen = {group.ranks: group.ranks[choice] for group, choice in zip(placed.groups, choices, strict=True)}
        node_ranks = {
            walk: tuple(chosen[ranks] if len(ranks) > 1 else ranks[0] for ranks in uses)
            for walk, uses in placed.ranks.items()
        }
        return Route(model, choices, placed.programs, node_ranks, placed.cache_lifetimes)
