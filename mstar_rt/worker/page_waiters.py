"""Who waits for pages: units whose step found none, and walks that gave theirs back so that others can finish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar_rt.errors import PagesExhausted
from mstar_rt.worker.active import ActiveWalk, Work
from mstar_rt.worker.unit import Unit


@dataclass(slots=True)
class Waiter:
    """A unit, or a walk that could not take in the sequences that it begins from (`unit` None)."""

    walk: ActiveWalk
    unit: Unit[Work] | None
    shortage: PagesExhausted

    @property
    def cache(self) -> str:
        """Whose pages are short."""
        if self.unit is not None:
            return self.unit.work.firing.node.cache or ""
        return next(cache for _, cache in self.walk.fetched)


class PageWaiters:
    """Bookkeeping only; PagePressure decides.

    Waiters keep what their walk has done so far and try again whenever pages come back. `suspended` walks, which no
    other rank takes part in, start again from their inputs, one whenever a walk ends, oldest first: the oldest walk is
    never suspended, so every walk that fits alone is served in bounded time.
    """

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._suspended: list[ActiveWalk] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspended)

    @property
    def any_waits(self) -> bool:
        return bool(self._waiting)

    def wait(self, waiter: Waiter) -> None:
        self._waiting.append(waiter)

    def oldest(self) -> Waiter:
        return min(self._waiting, key=lambda waiter: waiter.walk.age)

    def take_waiting(self) -> list[Waiter]:
        """All that wait, which wait no longer."""
        taken, self._waiting = self._waiting, []
        return taken

    def suspend(self, walk: ActiveWalk) -> None:
        self.forget(walk)
        self._suspended.append(walk)

    def take_oldest_suspended(self) -> ActiveWalk | None:
        if not self._suspended:
            return None
        oldest = min(self._suspended, key=lambda walk: walk.age)
        self._suspended.remove(oldest)
        return oldest

    def forget(self, walk: ActiveWalk) -> None:
        """The walk waits no longer, in either way."""
        if self._waiting:
            self._waiting = [waiter for waiter in self._waiting if waiter.walk is not walk]
        if walk in self._suspended:
            self._suspended.remove(walk)

    def walks(self) -> Iterator[ActiveWalk]:
        """Of all that wait, in either way; some of them more than once."""
        yield from [waiter.walk for waiter in self._waiting]
        yield from list(self._suspended)
