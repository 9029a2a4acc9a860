"""Orders that know no classes and no deadlines, to compare the scheduler with.

Both batch what the scheduler batches: ready units of one node and one batch key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Generic

from mstar_rt.worker.unit import Decision, T, Unit


class PlainPolicy(ABC, Generic[T]):
    """The oldest unit of some node and those that may share its step, oldest first. A unit that is out of the ready set
    has number 0."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._ready: dict[int, Unit[T]] = {}
        self._groups: dict[object, deque[Unit[T]]] = {}
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[Unit[T]]:
        return iter(list(self._ready.values()))

    def add(self, units: Iterable[Unit[T]]) -> None:
        for unit in units:
            self.add_one(unit)

    def add_one(self, unit: Unit[T]) -> None:
        self._num_added += 1
        unit.number = self._num_added
        self._ready[unit.number] = unit
        self._groups.setdefault((unit.engine_id, unit.batch_key), deque()).append(unit)
        self._queue(unit)

    def remove_request(self, request_id: str) -> None:
        for unit in [unit for unit in self if unit.request_id == request_id]:
            self._take(unit)
            self._groups[unit.engine_id, unit.batch_key].remove(unit)

    def next_batch(self, now_ns: int) -> Decision[T]:
        if not self._ready:
            return Decision([], [])
        first = self._first()
        key = (first.engine_id, first.batch_key)
        group = self._groups[key]
        group.remove(first)
        batch = [first]
        while group and len(batch) < self._max_batch:
            batch.append(group.popleft())
        if not group:
            del self._groups[key]
        for unit in batch:
            self._take(unit)
        return Decision(batch, [])

    def ran(self, batch: Sequence[Unit[T]], duration_ns: int) -> None:
        """Time decides nothing here."""

    def _take(self, unit: Unit[T]) -> None:
        del self._ready[unit.number]
        unit.number = 0

    @abstractmethod
    def _queue(self, unit: Unit[T]) -> None:
        """It is ready."""

    @abstractmethod
    def _first(self) -> Unit[T]:
        """The next one; something is ready."""


class FirstComeFirstServed(PlainPolicy[T]):
    """The unit of the oldest request."""

    def __init__(self, max_batch: int) -> None:
        super().__init__(max_batch)
        self._by_age: list[tuple[int, int, Unit[T]]] = []

    def _queue(self, unit: Unit[T]) -> None:
        heappush(self._by_age, (unit.age, unit.number, unit))

    def _first(self) -> Unit[T]:
        by_age = self._by_age
        while by_age[0][1] != by_age[0][2].number:
            heappop(by_age)
        return by_age[0][2]


class RoundRobin(PlainPolicy[T]):
    """The nodes that have ready units in turn, of each the unit that was ready first."""

    def __init__(self, max_batch: int) -> None:
        super().__init__(max_batch)
        self._turns: dict[tuple[str, str], deque[tuple[int, Unit[T]]]] = {}

    def _queue(self, unit: Unit[T]) -> None:
        self._turns.setdefault(unit.engine_id, deque()).append((unit.number, unit))

    def _first(self) -> Unit[T]:
        while True:
            engine_id = next(iter(self._turns))
            units = self._turns.pop(engine_id)
            while units and units[0][0] != units[0][1].number:
                units.popleft()
            if units:
                self._turns[engine_id] = units  # behind all others
                return units[0][1]
