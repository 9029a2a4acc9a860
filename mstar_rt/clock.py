"""The one source of time, injected everywhere so that tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds on a monotonic clock. On Linux it is shared by all processes of one machine."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_ns(self, delta_ns: int) -> None:
        if delta_ns < 0:
            raise ValueError(f"a monotonic clock cannot go back: delta_ns = {delta_ns}")
        self._now_ns += delta_ns


def deadline_ns_from_budget(clock: Clock, budget_ms: float | None) -> int | None:
    """Absolute deadline on `clock` for a relative budget; None stays None (no deadline)."""
    return None if budget_ms is None else clock.now_ns() + int(budget_ms * 1e6)
