"""Resolve placement rules against models' node names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError, nearest


@dataclass(frozen=True)
class Placement:
    """`rank_by_model`: the one rank that runs all nodes of a model."""

    rank_by_model: Mapping[str, int]

    def rank_of(self, model: str) -> int:
        return self.rank_by_model[model]

    def models_on(self, rank: int) -> tuple[str, ...]:
        return tuple(name for name, placed in self.rank_by_model.items() if placed == rank)


def place(
    nodes_by_model: Mapping[str, Sequence[str]], rules: Sequence[PlacementRule], ranks: Sequence[int]
) -> Placement:
    """One rank for every model. Later rules override earlier ones; without a rule a node runs on the lowest rank.

    Raises:
        ConfigError: a rule names an unknown model, node or rank, or asks for what this version cannot run: replicas, or
            the nodes of one model on several ranks.
    """
    rank_by_node = {(model, node): min(ranks) for model, nodes in nodes_by_model.items() for node in nodes}
    for index, rule in enumerate(rules):
        where = f"placement[{index}]"
        rank = _single_rank(rule, ranks, where)
        if rule.model not in nodes_by_model:
            raise ConfigError(f"{where}: unknown model {rule.model!r}, {nearest(rule.model, nodes_by_model)}")
        for node in _named_nodes(rule, nodes_by_model[rule.model], where):
            rank_by_node[rule.model, node] = rank
    return Placement({model: _one_rank(model, rank_by_node) for model in nodes_by_model})


def _single_rank(rule: PlacementRule, ranks: Sequence[int], where: str) -> int:
    for rank in rule.ranks:
        if rank not in ranks:
            raise ConfigError(f"{where}: rank {rank} has no worker, the workers are {sorted(ranks)}")
    if len(rule.ranks) != 1:
        raise ConfigError(f"{where}: ranks is {list(rule.ranks)}, this version runs a node on exactly one rank")
    return rule.ranks[0]


def _named_nodes(rule: PlacementRule, known: Sequence[str], where: str) -> Sequence[str]:
    if rule.nodes == ("*",):
        return known
    for node in rule.nodes:
        if node not in known:
            raise ConfigError(f"{where}: model {rule.model!r} has no node {node!r}, {nearest(node, known)}")
    return rule.nodes


def _one_rank(model: str, rank_by_node: Mapping[tuple[str, str], int]) -> int:
    ranks = {rank for (name, _), rank in rank_by_node.items() if name == model}
    if len(ranks) != 1:
        raise ConfigError(
            f"placement: nodes of model {model!r} are spread over ranks {sorted(ranks)}, this version runs all nodes "
            "of a model on one rank; name the model once with nodes ['*']"
        )
    return ranks.pop()
