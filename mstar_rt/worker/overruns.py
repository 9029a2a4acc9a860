"""Steps that took longer than `max_step_ms`: counted by node, and told once for each node, with what would help.

A step may be too large, or kept from its core by other programs; smaller steps help against the first only. What tells
them apart is for how long the worker's thread ran in it. Asking the kernel for that costs a microsecond or two, so it
is done for steps of nodes that were too long before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

TOLD_AFTER = 3
"""A step or two may have been held up by something else."""

NOT_ITS_SIZE = "not its size is to blame but what else runs on its cores (see docs/real-time.md, Jitter)"

Node = tuple[str, str]
"""Model, node."""


@dataclass(frozen=True)
class Step:
    """`usual_ns` is what nearly all steps like it take at most; None: there was no such step yet, as in the first runs
    after a start, which are slower than all others.
    """

    node: Node
    duration_ns: int
    usual_ns: int | None
    num_units: int
    num_items: int
    in_parts: bool


class Overruns:
    """Costs nothing for steps that keep the bound: the worker asks for `max_step_ns` and tells of those that do not.

    `ran_ns` is for how long this thread ran, on its own clock; None: that says nothing about steps.
    """

    def __init__(self, max_step_ns: int | None, ran_ns: Callable[[], int] | None = None) -> None:
        self.max_step_ns = max_step_ns
        self.watched: set[Node] = set()
        """Nodes of whose next steps `begin` is to be told."""
        self.num_by_node: Counter[Node] = Counter()
        self._ran_ns = ran_ns
        self._began_ns = 0
        self._num_too_large: Counter[Node] = Counter()
        self._num_held_up: Counter[Node] = Counter()

    def begin(self) -> None:
        """A step of a watched node begins."""
        assert self._ran_ns is not None
        self._began_ns = self._ran_ns()

    def note(self, step: Step) -> None:
        """A step was too long. One without `usual_ns` is counted, and not told."""
        assert self.max_step_ns is not None
        self.num_by_node[step.node] += 1
        if step.usual_ns is None:
            return
        if self._ran_ns is not None:
            if step.node not in self.watched:
                if not self._is_all_told(step.node):
                    self.watched.add(step.node)
                return
            ran_ns = self._ran_ns() - self._began_ns
            if ran_ns <= self.max_step_ns:
                self._held_up(step, f"of which it ran for {ran_ns / 1e6:.1f} ms")
                return
        if step.usual_ns <= self.max_step_ns:
            self._held_up(step, f"where others like it take {step.usual_ns / 1e6:.1f} ms at most")
            return
        self._num_too_large[step.node] += 1
        if self._num_too_large[step.node] == TOLD_AFTER:
            self._tell(step, f": {_advice(step)}")

    def _held_up(self, step: Step, evidence: str) -> None:
        self._num_held_up[step.node] += 1
        if self._num_held_up[step.node] == TOLD_AFTER:
            self._tell(step, f", {evidence}: {NOT_ITS_SIZE}")

    def _tell(self, step: Step, why: str) -> None:
        assert self.max_step_ns is not None
        logger.warning(
            "a step of node %s of model %s took %.1f ms, over max_step_ms = %g%s; others like it are only counted",
            step.node[1], step.node[0], step.duration_ns / 1e6, self.max_step_ns / 1e6, why,
        )  # fmt: skip
        if self._is_all_told(step.node):
            self.watched.discard(step.node)

    def _is_all_told(self, node: Node) -> bool:
        return min(self._num_too_large[node], self._num_held_up[node]) >= TOLD_AFTER

    def stats(self) -> dict[str, float]:
        """By the names of the counters."""
        return {f"over_bound/{model}/{node}": float(count) for (model, node), count in self.num_by_node.items()}


def _advice(step: Step) -> str:
    if step.in_parts and step.num_items > 1:
        return (
            f"{step.num_items} items were expected to fit, or one alone takes nearly as long; items that differ much "
            "in cost do that, or other work that shares a core's caches and threads"
        )
    if step.in_parts:
        return "a single item takes that long, so smaller items, a larger max_step_ms or a faster device would help"
    if step.num_units > 1:
        return (
            f"{step.num_units} requests shared it; a larger max_step_ms would help, or a smaller max_batch if one "
            "alone takes much less"
        )
    return "its code cannot run in parts, so a num_items() that says how, or a larger max_step_ms, would help"
