"""The ready units of one class, and those that may share a step, in every order that the scheduler asks for.

Adding or taking a unit costs the logarithm of how many are ready. What was taken stays in the heaps, as an entry whose
number is no longer its unit's, until it comes up or makes up more than half of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from mstar_rt.worker.scheduler_clients import ClientShares
from mstar_rt.worker.unit import CLASS_OF, T, Unit

NEVER_NS = 2**63 - 1
_SLACK = 64

Deadlines = list[tuple[int, int, Unit[T]]]
"""(deadline_ns, number, unit), the earliest first."""


class Group(Generic[T]):
    """Units of one node and one batch key."""

    __slots__ = ("_heap", "key", "num_items", "num_ready")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.num_ready = 0
        self.num_items = 0
        self._heap: list[tuple[int, int, int, int, int, Unit[T]]] = []

    def add(self, unit: Unit[T], deadline_ns: int) -> None:
        unit.group = self
        self.num_ready += 1
        self.num_items += unit.num_items
        heap, kind = self._heap, CLASS_OF[unit.criticality]
        heappush(heap, (kind, unit.order, deadline_ns, unit.arrival, unit.number, unit))
        if len(heap) > 2 * self.num_ready + _SLACK:
            heap[:] = [entry for entry in heap if entry[4] == entry[5].number]
            heapify(heap)

    def first(self) -> Unit[T]:
        """The most critical, in it the least advanced; there is one."""
        heap = self._heap
        while heap[0][4] != heap[0][5].number:
            heappop(heap)
        return heap[0][5]


class ReadyClass(Generic[T]):
    """The ready units of one criticality. `by_deadline` are those that have one, `by_soft_deadline` those that have a
    soft one, in their order."""

    __slots__ = ("_by_age", "_by_order", "by_deadline", "by_soft_deadline", "num_ready", "shares")

    def __init__(self) -> None:
        self.num_ready = 0
        self.by_deadline: Deadlines[T] = []
        self.by_soft_deadline: Deadlines[T] = []
        self.shares: ClientShares[T] = ClientShares()
        self._by_order: list[tuple[int, int, int, int, Unit[T]]] = []
        self._by_age: deque[tuple[int, Unit[T]]] = deque()

    def __iter__(self) -> Iterator[Unit[T]]:
        return iter([unit for number, unit in self._by_age if number == unit.number])

    def add(self, unit: Unit[T], deadline_ns: int) -> None:
        number = unit.number
        self.num_ready += 1
        heap, ages = self._by_order, self._by_age
        heappush(heap, (unit.order, deadline_ns, unit.arrival, number, unit))
        ages.append((number, unit))
        if deadline_ns != NEVER_NS:
            insort(self.by_soft_deadline if unit.is_soft else self.by_deadline, (deadline_ns, number, unit))
        self.shares.add(unit)
        most = 2 * self.num_ready + _SLACK
        if len(heap) > most:
            heap[:] = [entry for entry in heap if entry[3] == entry[4].number]
            heapify(heap)
        if len(ages) > most:
            self._by_age = deque(entry for entry in ages if entry[0] == entry[1].number)

    def remove(self, unit: Unit[T]) -> None:
        """Before its number is taken back."""
        self.num_ready -= 1
        if unit.deadline_ns is not None:
            by_deadline = self.by_soft_deadline if unit.is_soft else self.by_deadline
            del by_deadline[bisect_left(by_deadline, (unit.deadline_ns, unit.number))]
        self.shares.remove(unit)

    def first(self, overdue_at: int) -> Unit[T]:
        """The one that was added up to batch number `overdue_at`, if any, else the least advanced; there is one."""
        ages, heap = self._by_age, self._by_order
        while ages[0][0] != ages[0][1].number:
            ages.popleft()
        oldest = ages[0][1]
        if oldest.added_at <= overdue_at:
            return oldest
        while heap[0][3] != heap[0][4].number:
            heappop(heap)
        return heap[0][4]
