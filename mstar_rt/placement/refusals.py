"""Placements that follow the rules and yet cannot work: caches that could not move, or would change their dtype, and
replicas that would not give the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from mstar_rt.errors import ConfigError
from mstar_rt.graph import WalkGraph
from mstar_rt.placement.placement import ModelPlacement, Ranks
from mstar_rt.program import check_caches, siblings_of


def check_placed(model: str, placed: ModelPlacement, graph: WalkGraph, dtypes: Mapping[int, str]) -> None:
    """Raises: ConfigError: with the reason."""
    _check_replicas(model, placed, dtypes)
    _check_dtypes(model, placed, dtypes)
    for walk, program in placed.programs.items():
        siblings = siblings_of(graph.walk(walk))
        for node_ranks in _telling_choices(placed.ranks[walk]):
            for reason in check_caches(program, node_ranks, siblings):
                raise ConfigError(f"placement: walk {walk!r} of model {model!r}: {reason}")


def _telling_choices(ranks: Sequence[Ranks]) -> list[tuple[int, ...]]:
    """Choices of replicas such that any two nodes that some choice puts on different ranks are so in one of these.

    That is all that the caches depend on, and there are far fewer of them than choices.
    """
    kinds = list(dict.fromkeys(ranks))
    first = {kind: kind[0] for kind in kinds}
    chosen = [first]
    for one, other in combinations(kinds, 2):
        if one[0] == other[0]:
            longer = max(one, other, key=len)
            chosen.append(first | {longer: longer[1]})
    return [tuple(choice[kind] for kind in ranks) for choice in chosen]


def _check_replicas(model: str, placed: ModelPlacement, dtypes: Mapping[int, str]) -> None:
    """An answer does not depend on who is free."""
    for walk, program in placed.programs.items():
        for use in program.nodes:
            first, *others = placed.ranks[walk][use.index]
            for other in others:
                one_dtype, other_dtype = dtypes.get(first, ""), dtypes.get(other, "")
                if one_dtype != other_dtype:
                    raise ConfigError(
                        f"placement: node {use.name!r} of model {model!r} has replicas on rank {first} ({one_dtype}) "
                        f"and rank {other} ({other_dtype}), and answers would depend on which one is free; give these "
                        "workers the same dtype"
                    )


def _check_dtypes(model: str, placed: ModelPlacement, dtypes: Mapping[int, str]) -> None:
    """Pages travel between ranks as they are."""
    for holders in _sharing(placed).values():
        for cache, ranks in holders.items():
            by_dtype = {dtypes.get(rank, ""): rank for rank in sorted(ranks, reverse=True)}
            if len(by_dtype) > 1:
                (one, rank), (other, other_rank) = sorted(by_dtype.items(), key=lambda item: item[1])[:2]
                raise ConfigError(
                    f"placement: cache {cache!r} of model {model!r} moves between rank {rank} ({one}) and rank "
                    f"{other_rank} ({other}); give these workers the same dtype"
                )


def _sharing(placed: ModelPlacement) -> dict[str, dict[str, set[int]]]:
    """By walk ("" for what outlives walks) and cache, the ranks that may give pages to one another."""
    holders: dict[str, dict[str, set[Ranks]]] = {}
    for walk, program in placed.programs.items():
        for node in program.nodes:
            cache = node.node.cache
            if cache is not None:
                outlives = placed.cache_lifetimes.get(cache, "walk") != "walk"
                of_scope = holders.setdefault("" if outlives else walk, {})
                of_scope.setdefault(cache, set()).add(placed.ranks[walk][node.index])
    return {
        scope: {
            cache: {rank for ranks in options for rank in ranks}
            for cache, options in caches.items()
            if len(options) > 1  # one group alone makes one choice: its replicas share nothing
        }
        for scope, caches in holders.items()
    }
