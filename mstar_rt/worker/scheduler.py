"""Which ready nodes run next, as one batch: a pure object, no clock, no torch.

The most critical class runs first. Inside a class the request that is *least advanced* in its walk runs first, so that
requests which started apart meet at the same node and share its step from there on; a loop body of one request never
runs ahead while another waits one node before it. But a unit that `patience` batches were preferred to is *overdue* and
goes before those that are not, so that under steady load nodes late in a walk run as well; orders of different walks do
not compare anyway. A unit whose deadline is closer than `urgent_ns` overrides both, earliest deadline first. The batch
is filled with units of the same node and the same batch key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

CRITICALITIES = ("control", "planning", "generation")
_CLASS_OF = {name: index for index, name in enumerate(CRITICALITIES)}
_NEVER_NS = 2**63 - 1

T = TypeVar("T")


@dataclass(slots=True, eq=False)
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
    is_ready: bool = False  # this and the next are the scheduler's own marks
    added_at: int = 0


_URGENT, _OVERDUE, _NORMAL = range(3)
_Rank = tuple[int, int, int, int, int]


class Scheduler(Generic[T]):
    """The ready set of one worker. Adding and taking a unit costs the logarithm of how many are ready."""

    def __init__(self, max_batch: int, urgent_ns: int = 20_000_000, patience: int = 8) -> None:
        self._max_batch = max_batch
        self._urgent_ns = urgent_ns
        self._patience = patience
        self._num_batches = 0
        self._groups: dict[Hashable, _Group[T]] = {}
        self._num_ready = 0
        self._only: Unit[T] | None = None  # a unit that alone is ready needs no order

    def __len__(self) -> int:
        return self._num_ready

    def add(self, units: Iterable[Unit[T]]) -> None:
        for unit in units:
            self.add_one(unit)

    def add_one(self, unit: Unit[T]) -> None:
        unit.added_at = self._num_batches
        self._num_ready += 1
        if self._num_ready == 1:
            self._only = unit
            return
        if self._only is not None:
            self._put(self._only)
            self._only = None
        self._put(unit)

    def _put(self, unit: Unit[T]) -> None:
        key = (unit.engine_id, unit.batch_key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.add(unit)

    def remove_request(self, request_id: str) -> None:
        """Costs a look at every ready unit: for requests that end before their time."""
        if self._only is not None:
            if self._only.request_id == request_id:
                self._only = None
                self._num_ready = 0
            return
        for key, group in list(self._groups.items()):
            for unit in group:
                if unit.request_id == request_id:
                    unit.is_ready = False
                    group.num_ready -= 1
                    self._num_ready -= 1
            if not group.num_ready:
                del self._groups[key]

    def next_batch(self, now_ns: int) -> list[Unit[T]]:
        """Take the next batch out of the ready set; empty if nothing is ready."""
        if not self._num_ready:
            return []
        if self._only is not None:
            unit, self._only = self._only, None
            self._num_batches += 1
            self._num_ready = 0
            return [unit]
        urgent_ns, overdue_at = now_ns + self._urgent_ns, self._num_batches - self._patience
        self._num_batches += 1
        key, group = min(self._groups.items(), key=lambda item: item[1].first(urgent_ns, overdue_at)[0])
        batch: list[Unit[T]] = []
        while group.num_ready and len(batch) < self._max_batch:
            batch.append(group.take_first(urgent_ns, overdue_at))
        if not group.num_ready:
            del self._groups[key]
        self._num_ready -= len(batch)
        return batch


class _Group(Generic[T]):
    """Units that may share a batch, in the three orders that count; what was taken is skipped when it comes up."""

    __slots__ = ("_by_age", "_by_deadline", "_by_order", "_num_added", "num_ready")

    def __init__(self) -> None:
        self._by_order: list[tuple[int, int, int, int, int, Unit[T]]] = []
        self._by_deadline: list[tuple[int, int, int, int, Unit[T]]] = []
        self._by_age: dict[int, deque[Unit[T]]] = {}
        self._num_added = 0
        self.num_ready = 0

    def __iter__(self) -> Iterator[Unit[T]]:
        return iter([entry[-1] for entry in self._by_order if entry[-1].is_ready])

    def add(self, unit: Unit[T]) -> None:
        unit.is_ready = True
        self.num_ready += 1
        kind, deadline_ns = _CLASS_OF[unit.criticality], unit.deadline_ns
        of_age = self._by_age.get(kind)
        if of_age is None:
            of_age = self._by_age[kind] = deque()
        of_age.append(unit)
        # Heaps must not come to compare units.
        self._num_added = number = self._num_added + 1
        if deadline_ns is None:
            heappush(self._by_order, (kind, unit.order, _NEVER_NS, unit.arrival, number, unit))
            return
        heappush(self._by_order, (kind, unit.order, deadline_ns, unit.arrival, number, unit))
        heappush(self._by_deadline, (kind, deadline_ns, unit.arrival, number, unit))

    def first(self, urgent_ns: int, overdue_at: int) -> tuple[_Rank, Unit[T]]:
        """The unit that goes first, with what to compare it to those of other groups by.

        Urgent is a deadline up to `urgent_ns`, overdue what was added up to batch number `overdue_at`.
        """
        by_order, by_deadline = self._by_order, self._by_deadline
        while not by_order[0][-1].is_ready:
            heappop(by_order)
        while by_deadline and not by_deadline[0][-1].is_ready:
            heappop(by_deadline)
        kind, order, deadline_ns, arrival, _, unit = by_order[0]
        if by_deadline and by_deadline[0][0] == kind and by_deadline[0][1] <= urgent_ns:
            _, deadline_ns, arrival, _, unit = by_deadline[0]
            return (kind, _URGENT, deadline_ns, deadline_ns, arrival), unit
        of_age = self._by_age[kind]
        while not of_age[0].is_ready:
            of_age.popleft()
        if of_age[0].added_at <= overdue_at:
            unit = of_age[0]
            return (kind, _OVERDUE, unit.added_at, 0, unit.arrival), unit
        return (kind, _NORMAL, order, deadline_ns, arrival), unit

    def take_first(self, urgent_ns: int, overdue_at: int) -> Unit[T]:
        unit = self.first(urgent_ns, overdue_at)[1]
        unit.is_ready = False
        self.num_ready -= 1
        return unit
