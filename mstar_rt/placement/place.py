"""From the rules of a deployment file to a `Placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mstar_rt.config import PlacementRule
from mstar_rt.graph import WalkGraph
from mstar_rt.placement.placement import ModelPlacement, Placement, Ranks, ReplicaGroup
from mstar_rt.placement.refusals import check_placed
from mstar_rt.placement.route import persisting_nodes
from mstar_rt.placement.rules import apply_rules
from mstar_rt.program import Program, compile_walk


@dataclass(frozen=True)
class PlacedModel:
    """What placing a model needs to know of it; `cache_lifetimes` are those of its KVSpecs."""

    graph: WalkGraph
    cache_lifetimes: Mapping[str, str]


def place(
    models: Mapping[str, PlacedModel],
    rules: Sequence[PlacementRule],
    ranks: Sequence[int],
    dtypes: Mapping[int, str] | None = None,
) -> Placement:
    """Ranks for every node use of every walk. Later rules override earlier ones; without a rule a node runs on the
    lowest rank. `dtypes` are those that the ranks compute in, all alike if not given.

    Raises:
        ConfigError: a rule names an unknown model, walk, node or rank, or the rules together cannot work.
    """
    programs = {
        name: {walk.name: compile_walk(model.graph, walk.name) for walk in model.graph.walks}
        for name, model in models.items()
    }
    by_model = apply_rules(programs, rules, ranks)
    placed: dict[str, ModelPlacement] = {}
    for name, model in models.items():
        of_walk = {walk: tuple(uses) for walk, uses in by_model[name].items()}
        groups = _groups(programs[name], of_walk, model.cache_lifetimes)
        placed[name] = ModelPlacement(programs[name], dict(model.cache_lifetimes), of_walk, groups)
        check_placed(name, placed[name], model.graph, dtypes or {})
    return Placement(placed)


def _groups(
    programs: Mapping[str, Program], ranks: Mapping[str, tuple[Ranks, ...]], cache_lifetimes: Mapping[str, str]
) -> tuple[ReplicaGroup, ...]:
    """Uses of equal ranks choose together, so that what they share (caches, weights) is on the rank chosen."""
    uses: dict[Ranks, list[tuple[str, str]]] = {}
    sticky: set[Ranks] = set()
    persisted = {name for program in programs.values() for name, _ in persisting_nodes(program)}
    for walk, program in programs.items():
        stateful = _stateful_nodes(program, persisted, cache_lifetimes)
        for node in program.nodes:
            of_node = ranks[walk][node.index]
            if len(of_node) > 1:
                uses.setdefault(of_node, []).append((walk, node.name))
                sticky |= {of_node} if node.index in stateful else set()
    return tuple(ReplicaGroup(of_group, of_group in sticky, tuple(pairs)) for of_group, pairs in uses.items())


def _stateful_nodes(program: Program, persisted: set[str], cache_lifetimes: Mapping[str, str]) -> set[int]:
    """Nodes whose rank matters to later requests of a session."""
    kept = {
        node.index
        for node in program.nodes
        if node.node.cache is not None and cache_lifetimes.get(node.node.cache) == "session"
    }
    readers = {edge.target for edge in program.edges if edge.source is None and edge.source_slot in persisted}
    return kept | readers | {node for _, node in persisting_nodes(program)}
