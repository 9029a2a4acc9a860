"""Fairness between the clients of one class: who got how much step time while others waited too."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush, heapreplace
from typing import Generic

from mstar_rt.worker.unit import T, Unit

LAG_NS = 250_000_000
"""How far a client may fall behind before that decides. Less would keep requests of several clients from meeting: the
one that is behind in its walk has to run ahead of the others for a while, to share steps with them from there on."""

MAX_CLIENTS = 1024


class _Client(Generic[T]):
    __slots__ = ("is_listed", "num_ready", "served_ns", "units")

    def __init__(self) -> None:
        self.is_listed = False
        self.served_ns = 0
        self.num_ready = 0
        self.units: deque[tuple[int, Unit[T]]] = deque()


class ClientShares(Generic[T]):
    """Step time by client. Time that nobody asked for is not saved up: who is new stands where the least served of
    those who wait stands, who asks again after a pause at most LAG_NS before it."""

    __slots__ = ("_by_served", "_clients", "_num_entries", "_num_waiting", "_served_ns")

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._by_served: list[tuple[int, int, _Client[T]]] = []
        self._num_entries = 0
        self._num_waiting = 0
        self._served_ns = 0

    def add(self, unit: Unit[T]) -> None:
        client = self._clients.get(unit.client)
        if client is None:
            client = self._new(unit.client)
        if not client.num_ready:
            self._begin(client)
        client.num_ready += 1
        client.units.append((unit.number, unit))

    def remove(self, unit: Unit[T]) -> None:
        client = self._clients[unit.client]
        client.num_ready -= 1
        if not client.num_ready:
            self._num_waiting -= 1
            client.units.clear()

    def charge(self, name: str, duration_ns: int) -> None:
        client = self._clients.get(name)
        if client is None:
            client = self._new(name)
        client.served_ns += duration_ns
        if not self._num_waiting and client.served_ns > self._served_ns:
            self._served_ns = client.served_ns

    def behind(self, unit: Unit[T]) -> Unit[T] | None:
        """The oldest unit of the least served client, if that is too far behind the client of `unit`."""
        if self._num_waiting < 2:
            return None
        least = self._least_served()
        if self._clients[unit.client].served_ns - least.served_ns <= LAG_NS:
            return None
        units = least.units
        while units[0][0] != units[0][1].number:
            units.popleft()
        return units[0][1]

    def _begin(self, client: _Client[T]) -> None:
        """It has waited for nothing until now."""
        client.served_ns = max(client.served_ns, self._floor_ns() - LAG_NS)
        self._num_waiting += 1
        if not client.is_listed:
            client.is_listed = True
            self._num_entries += 1
            heappush(self._by_served, (client.served_ns, self._num_entries, client))

    def _floor_ns(self) -> int:
        """What the least served of those who wait, or waited last, has had."""
        if self._num_waiting:
            self._served_ns = max(self._served_ns, self._least_served().served_ns)
        return self._served_ns

    def _least_served(self) -> _Client[T]:
        """Of those who wait. An entry that is out of date is too low, as nobody's time ever shrinks."""
        heap = self._by_served
        while True:
            served_ns, number, client = heap[0]
            if not client.num_ready:
                heappop(heap)
                client.is_listed = False
            elif served_ns != client.served_ns:
                heapreplace(heap, (client.served_ns, number, client))
            else:
                return client

    def _new(self, name: str) -> _Client[T]:
        if len(self._clients) >= MAX_CLIENTS:
            self._clients = {name: client for name, client in self._clients.items() if client.num_ready}
        client = self._clients[name] = _Client()
        client.served_ns = self._floor_ns()
        return client
