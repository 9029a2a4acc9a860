"""Tree-structured sampling: candidates share the first steps of their actions, which are imagined once. No torch.

With branches (b0, b1, ...) the first step has b0 different actions, the second b0 * b1, and so on; the last has one for
each candidate. Candidates stand in order of the tree, so those that share a step's actions are consecutive.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mstar_rt.errors import InvalidArgument


def rows_at(step: int, num_candidates: int, branching: Sequence[float]) -> int:
    """How many different sequences of actions there are up to and with `step`; () is flat: one per candidate."""
    return min(int(prod(branching[: step + 1])), num_candidates) if branching else num_candidates


def num_rows(horizon: int, num_candidates: int, branching: Sequence[float]) -> int:
    """How many steps are imagined for all candidates together."""
    return sum(rows_at(step, num_candidates, branching) for step in range(horizon))


def checked_branching(branching: Sequence[float], num_samples: int, horizon: int) -> tuple[int, ...]:
    """Raises: InvalidArgument: branches that are no whole numbers, or fit neither the horizon nor the candidates."""
    if any(branches != int(branches) or branches < 1 for branches in branching):
        raise InvalidArgument(f"option 'tree_branching' is {tuple(branching)}, expected whole numbers from 1")
    whole = tuple(int(branches) for branches in branching)
    if whole and len(whole) != horizon:
        raise InvalidArgument(
            f"option 'tree_branching' has {len(whole)} entries, expected one per step: rollout_horizon is {horizon}"
        )
    if whole and prod(whole) != num_samples:
        raise InvalidArgument(
            f"option 'tree_branching' is {whole}, which makes {prod(whole)} candidates, and num_samples is "
            f"{num_samples}: give num_samples={prod(whole)}"
        )
    return whole
