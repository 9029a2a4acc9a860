"""Which ready nodes run next, as one batch: a pure object, no clock, no torch.

The most critical class runs first. Inside a class the request that is *least advanced* in its walk runs first, so that
requests which started apart meet at the same node and share its step from there on; a loop body of one request never
runs ahead while another waits one node before it. A unit whose deadline is closer than `urgent_ns` overrides that
order, earliest deadline first. The batch is filled with units of the same node and the same batch key.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

CRITICALITIES = ("control", "planning", "generation")

T = TypeVar("T")


@dataclass(slots=True)
class Unit(Generic[T]):
    """One (node, request) that can run now.

    `engine_id` is (model, node), `order` the node's topological position in its walk, `arrival` a number that grows
    with every unit, `work` whatever the worker needs to run it.
    """

    request_id: str
    engine_id: tuple[str, str]
    batch_key: Hashable
    criticality: str
    order: int
    arrival: int
    ready_ns: int
    work: T
    deadline_ns: int | None = None


class Scheduler(Generic[T]):
    """The ready set of one worker."""

    def __init__(self, max_batch: int, urgent_ns: int = 20_000_000) -> None:
        self._max_batch = max_batch
        self._urgent_ns = urgent_ns
        self._ready: list[Unit[T]] = []

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, units: Iterable[Unit[T]]) -> None:
        self._ready.extend(units)

    def remove_request(self, request_id: str) -> None:
        self._ready = [unit for unit in self._ready if unit.request_id != request_id]

    def next_batch(self, now_ns: int) -> list[Unit[T]]:
        """Take the next batch out of the ready set; empty if nothing is ready."""
        if not self._ready:
            return []
        ranked = sorted(self._ready, key=lambda unit: self._rank(unit, now_ns))
        first = ranked[0]
        batch = [unit for unit in ranked if _may_share(first, unit)][: self._max_batch]
        taken = {id(unit) for unit in batch}
        self._ready = [unit for unit in self._ready if id(unit) not in taken]
        return batch

    def _rank(self, unit: Unit[T], now_ns: int) -> tuple[int, int, int, int, int]:
        deadline_ns = unit.deadline_ns if unit.deadline_ns is not None else 2**63 - 1
        urgent = deadline_ns - now_ns <= self._urgent_ns
        return (
            CRITICALITIES.index(unit.criticality),
            0 if urgent else 1,
            deadline_ns if urgent else unit.order,
            deadline_ns,
            unit.arrival,
        )


def _may_share(first: Unit[T], other: Unit[T]) -> bool:
    return first.engine_id == other.engine_id and first.batch_key == other.batch_key
