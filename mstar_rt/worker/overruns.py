"""Steps that took longer than `max_step_ms`: counted by node, and told once for each node, with what would help."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger(__name__)

TOLD_AFTER = 3
"""A step or two may have been held up by something else."""


class Overruns:
    """Costs nothing for steps that keep the bound: the worker asks for `max_step_ns` and tells of those that do not."""

    def __init__(self, max_step_ns: int | None) -> None:
        self.max_step_ns = max_step_ns
        self.num_by_node: Counter[tuple[str, str]] = Counter()
        self._num_warm: Counter[tuple[str, str]] = Counter()

    def note(
        self, node: tuple[str, str], duration_ns: int, num_units: int, num_items: int, in_parts: bool, is_new: bool
    ) -> None:
        """A step of `node` (model, node) was too long. `is_new`: no such step was measured before, as in the first
        runs after a start, which are slower than all others; that is counted, and not told."""
        assert self.max_step_ns is not None
        self.num_by_node[node] += 1
        if is_new:
            return
        self._num_warm[node] += 1
        if self._num_warm[node] != TOLD_AFTER:
            return
        logger.warning(
            "a step of node %s of model %s took %.1f ms, over max_step_ms = %g: %s; further ones are counted only",
            node[1], node[0], duration_ns / 1e6, self.max_step_ns / 1e6, _advice(num_units, num_items, in_parts),
        )  # fmt: skip

    def stats(self) -> dict[str, float]:
        """By the names of the counters."""
        return {f"over_bound/{model}/{node}": float(count) for (model, node), count in self.num_by_node.items()}


def _advice(num_units: int, num_items: int, in_parts: bool) -> str:
    if in_parts and num_items > 1:
        return (
            f"{num_items} items were expected to fit; if it goes on, other work shares its cores, or items differ much "
            "in cost"
        )
    if in_parts:
        return "a single item takes that long, so smaller items, a larger max_step_ms or a faster device would help"
    if num_units > 1:
        return f"{num_units} requests shared it; a smaller max_batch or a larger max_step_ms would help"
    return "its code cannot run in parts, so a num_items() that says how, or a larger max_step_ms, would help"
