"""Holds a robot to the rate that it was admitted with."""

from __future__ import annotations

BURST = 4
"""Chunks that may be begun at once: a network delivers observations late, and then together."""
TOLERANCE = 0.01
"""By how much a robot's clock may run faster."""


class AdmittedPace:
    """`take` says whether one more chunk, begun at `now_ns`, keeps to `rate_hz`; one that does not does not count."""

    def __init__(self, rate_hz: float) -> None:
        self._period_ns = 1e9 / rate_hz
        self._due_ns = 0.0

    def take(self, now_ns: int) -> bool:
        due_ns = max(self._due_ns, now_ns)
        if due_ns - now_ns > (BURST - 1) * self._period_ns:
            return False
        self._due_ns = due_ns + (1 - TOLERANCE) * self._period_ns
        return True
