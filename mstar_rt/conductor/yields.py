"""Walks that gave their pages back so that an older one can finish, and which rank they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mstar_rt.conductor.requests import RequestState


class YieldedWalks:
    """Counts the parts that run on each rank, and keeps the walks that are suspended.

    One suspended walk begins again whenever a part ends on the rank where it yielded, the oldest first, and at once if
    no part runs there: then nothing would ever wake it.
    """

    def __init__(self) -> None:
        self._num_parts: Counter[int] = Counter()
        self._suspended: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._suspended)

    @property
    def num_parts(self) -> int:
        return sum(self._num_parts.values())

    def add_parts(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._num_parts[rank] += 1

    def remove_parts(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._num_parts[rank] -= 1
            if not self._num_parts[rank]:
                del self._num_parts[rank]

    def suspend(self, state: RequestState) -> None:
        self._suspended.append(state)

    def forget(self, state: RequestState) -> None:
        """It has ended."""
        self._suspended = [other for other in self._suspended if other is not state]

    def take_for(self, rank: int) -> RequestState | None:
        """The oldest one that waits for that rank, which waits no longer."""
        waiting = [state for state in self._suspended if _yielded_on(state) == rank]
        if not waiting:
            return None
        oldest = min(waiting, key=lambda state: state.age)
        self.forget(oldest)
        return oldest

    def take_stuck(self) -> RequestState | None:
        """The oldest one that waits for a rank where nothing runs."""
        for state in sorted(self._suspended, key=lambda state: state.age):
            if not self._num_parts[_yielded_on(state)]:
                self.forget(state)
                return state
        return None


def _yielded_on(state: RequestState) -> int:
    assert state.walk is not None
    assert state.walk.yielded_on is not None
    return state.walk.yielded_on
