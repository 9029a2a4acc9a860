"""Where the nodes of a served model run, for those who ask."""

from __future__ import annotations

from collections.abc import Mapping

from mstar_rt.model.node_place import NodePlace
from mstar_rt.placement import Placement, Ranks


def node_places(placement: Placement, model: str, dtypes: Mapping[int, str]) -> list[NodePlace]:
    """One for each node and set of ranks that it has, by walk; `dtypes` by rank."""
    walks: dict[tuple[str, Ranks], list[str]] = {}
    for walk in placement.walks(model):
        for use, ranks in zip(placement.program(model, walk).nodes, placement.use_ranks(model, walk), strict=True):
            of_place = walks.setdefault((use.node.name, ranks), [])
            if walk not in of_place:
                of_place.append(walk)
    return [NodePlace(node, tuple(names), ranks, dtypes[ranks[0]]) for (node, ranks), names in walks.items()]
