"""Resolve placement rules against the walks and node uses of the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mstar_rt.config import PlacementRule
from mstar_rt.errors import ConfigError, nearest
from mstar_rt.placement.placement import Ranks
from mstar_rt.program import Program

ALL = ("*",)


def apply_rules(
    programs: Mapping[str, Mapping[str, Program]], rules: Sequence[PlacementRule], ranks: Sequence[int]
) -> dict[str, dict[str, list[Ranks]]]:
    """The ranks of every program node, by model and walk. Later rules override earlier ones; a node that no rule names
    runs on the lowest rank.

    Raises: ConfigError: a rule names what does not exist, or would change nothing.
    """
    lowest: Ranks = (min(ranks),)
    placed = {
        model: {walk: [lowest] * len(program.nodes) for walk, program in walks.items()}
        for model, walks in programs.items()
    }
    for index, rule in enumerate(rules):
        where = f"placement[{index}]"
        if rule.model not in programs:
            raise ConfigError(f"{where}: unknown model {rule.model!r}, {nearest(rule.model, programs)}")
        chosen = _rule_ranks(rule, ranks, where)
        for walk, node in _matches(rule, programs[rule.model], where):
            placed[rule.model][walk][node] = chosen
    return placed


def _rule_ranks(rule: PlacementRule, ranks: Sequence[int], where: str) -> Ranks:
    """In rising order, so that two rules of the same ranks make one group however they are written."""
    if not rule.ranks:
        raise ConfigError(f"{where}: ranks is empty, name at least one rank")
    for rank in rule.ranks:
        if rank not in ranks:
            raise ConfigError(f"{where}: rank {rank} has no worker, the workers are {sorted(ranks)}")
        if rule.ranks.count(rank) > 1:
            raise ConfigError(f"{where}: rank {rank} is named twice, name every replica once")
    return tuple(sorted(rule.ranks))


def _matches(rule: PlacementRule, programs: Mapping[str, Program], where: str) -> list[tuple[str, int]]:
    """(walk, program node) pairs that the rule is about."""
    walks = _named_walks(rule, programs, where)
    if rule.nodes == ALL:
        return [(walk, node.index) for walk in walks for node in programs[walk].nodes]
    found = [(walk, index) for name in rule.nodes for walk, index in _uses(rule, name, programs, walks, where)]
    for walk in walks if rule.walks != ALL else ():
        if walk not in {walk for walk, _ in found}:
            missing, only = _listed(rule.nodes, " or "), _listed(use.name for use in programs[walk].nodes)
            raise ConfigError(f"{where}: walk {walk!r} has no node {missing}, only {only}; take it out of the rule")
    return found


def _named_walks(rule: PlacementRule, programs: Mapping[str, Program], where: str) -> Sequence[str]:
    if rule.walks == ALL:
        return list(programs)
    for walk in rule.walks:
        if walk not in programs:
            raise ConfigError(f"{where}: model {rule.model!r} has no walk {walk!r}, {nearest(walk, programs)}")
        if rule.walks.count(walk) > 1:
            raise ConfigError(f"{where}: walk {walk!r} is named twice")
    return rule.walks


def _uses(
    rule: PlacementRule, name: str, programs: Mapping[str, Program], walks: Sequence[str], where: str
) -> list[tuple[str, int]]:
    """All uses of the node `name`, else the uses under the alias `name`, in those walks."""
    if rule.nodes.count(name) > 1:
        raise ConfigError(f"{where}: node {name!r} is named twice")
    all_nodes = [use for program in programs.values() for use in program.nodes]
    known = {use.node.name for use in all_nodes} | {use.name for use in all_nodes}
    if name not in known:
        raise ConfigError(f"{where}: model {rule.model!r} has no node {name!r}, {nearest(name, known)}")
    is_node = any(use.node.name == name for use in all_nodes)
    found = [
        (walk, use.index)
        for walk in walks
        for use in programs[walk].nodes
        if name == (use.node.name if is_node else use.name)
    ]
    if not found:
        raise ConfigError(f"{where}: node {name!r} is in none of the walks {_listed(walks)}; name a walk that has it")
    return found


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(map(repr, names))
