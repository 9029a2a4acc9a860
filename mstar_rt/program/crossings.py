"""What goes from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar_rt.program.program import Program, ProgramEdge


@dataclass(frozen=True, slots=True)
class Crossing:
    """A ProgramEdge between nodes of different ranks. `cache`: that whose sequences go along, None if none do."""

    source: int
    source_slot: str
    target: int
    target_slot: str
    from_rank: int
    to_rank: int
    kinds: tuple[str, ...]
    cache: str | None


def crossings(program: Program, node_ranks: Sequence[int]) -> tuple[Crossing, ...]:
    """Every edge from one rank to another; walk inputs, which every rank is given, are not among them."""
    return tuple(
        Crossing(
            edge.source,
            edge.source_slot,
            edge.target,
            edge.target_slot,
            node_ranks[edge.source],
            node_ranks[edge.target],
            edge.kinds,
            _moved_cache(program, edge),
        )
        for edge in program.edges
        if edge.source is not None and node_ranks[edge.source] != node_ranks[edge.target]
    )


def _moved_cache(program: Program, edge: ProgramEdge) -> str | None:
    """As in `cut`: sequences go with a value between two nodes of one cache, but not through a stream."""
    assert edge.source is not None
    cache = program.nodes[edge.source].node.cache
    return cache if cache == program.nodes[edge.target].node.cache and "stream" not in edge.kinds else None
