"""Is the server still there, and when to try it again."""

from __future__ import annotations

FIRST_RETRY_S = 0.1
MAX_RETRY_S = 2.0
BEATS_PER_TIMEOUT = 4


class Heartbeats:
    """One connection's. Whatever comes from the server counts as a sign of life."""

    def __init__(self, timeout_s: float, now_ns: int) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self.interval_s = timeout_s / BEATS_PER_TIMEOUT
        self._last_sent_ns = now_ns
        self._asked_ns: int | None = None
        """When the oldest heartbeat was sent since the last sign of life."""
        self._num_asked = 0
        self._number = 0

    def heard(self) -> None:
        self._asked_ns = None

    def due(self, now_ns: int) -> int | None:
        """The number of the heartbeat to send now; None: it is not time yet."""
        if now_ns - self._last_sent_ns < self.interval_s * 1e9:
            return None
        self._last_sent_ns = now_ns
        if self._asked_ns is None:
            self._asked_ns, self._num_asked = now_ns, 0
        self._num_asked += 1
        self._number += 1
        return self._number

    def is_silent(self, now_ns: int) -> bool:
        """Nothing has come since a heartbeat that was sent longer ago than the timeout, nor since as many as are sent
        in that time: who was not run meanwhile has not read what came, and asks again first."""
        if self._asked_ns is None or now_ns - self._asked_ns <= self._timeout_ns:
            return False
        return self._num_asked >= BEATS_PER_TIMEOUT


class Backoff:
    """Seconds until the next attempt: FIRST_RETRY_S, doubled each time, at most MAX_RETRY_S, until one succeeds."""

    def __init__(self) -> None:
        self._next_s = FIRST_RETRY_S

    def next_s(self) -> float:
        delay_s, self._next_s = self._next_s, min(2 * self._next_s, MAX_RETRY_S)
        return delay_s

    def succeeded(self) -> None:
        self._next_s = FIRST_RETRY_S
