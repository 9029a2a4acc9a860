"""Who waits for pages: units whose step found none, and walks that gave theirs back so that others can finish."""

from __future__ import annotations

from collections.abc import Iterator

from mstar_rt.errors import PagesExhausted
from mstar_rt.program import Firing
from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.scheduler import Unit


class PageWaiters:
    """Bookkeeping only; the worker decides.

    `waiting` units keep what their walk has done so far and try again whenever a walk gives pages back. `suspended`
    walks start again from their inputs, one whenever a walk ends, oldest first: the oldest walk is never suspended, so
    every walk that fits alone is served in bounded time.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Unit[Firing], PagesExhausted]] = []
        self._suspended: list[ActiveWalk] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, unit: Unit[Firing], shortage: PagesExhausted) -> None:
        self._waiting.append((unit, shortage))

    def last_shortage(self) -> tuple[Unit[Firing], PagesExhausted]:
        return self._waiting[-1]

    def take_waiting(self) -> list[Unit[Firing]]:
        """All waiting units, which wait no longer."""
        taken, self._waiting = [unit for unit, _ in self._waiting], []
        return taken

    def suspend(self, walk: ActiveWalk) -> None:
        self._suspended.append(walk)
        self._waiting = [entry for entry in self._waiting if entry[0].request_id != walk.request_id]

    def take_oldest_suspended(self) -> ActiveWalk | None:
        if not self._suspended:
            return None
        oldest = min(self._suspended, key=lambda walk: walk.arrival)
        self._suspended.remove(oldest)
        return oldest

    def is_suspended(self, walk: ActiveWalk) -> bool:
        return walk in self._suspended

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._waiting = [entry for entry in self._waiting if entry[0].request_id != request_id]
        self._suspended = [walk for walk in self._suspended if walk.request_id != request_id]

    def request_ids(self) -> Iterator[str]:
        """Of all that wait, in either way."""
        yield from {unit.request_id for unit, _ in self._waiting}
        yield from [walk.request_id for walk in self._suspended]
