"""How many actions a robot consumes while its next chunk is made, from what the last answers took."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 10
LEAST = 1
"""What is assumed before anything was measured: no answer takes less than a part of one tick."""


class DelayEstimate:
    """The largest delay of the last WINDOW answers, in control periods. An answer that had to warm something up is left
    out: the first one of a session, and the first one after a worker was lost.
    """

    def __init__(self, control_hz: float) -> None:
        self._control_hz = control_hz
        self._measured: deque[int] = deque(maxlen=WINDOW)
        self._leave_out_next = True

    @property
    def ticks(self) -> int:
        return max(self._measured, default=LEAST)

    def add(self, elapsed_s: float) -> None:
        """An answer was sent `elapsed_s` after its observation arrived."""
        if self._leave_out_next:
            self._leave_out_next = False
            return
        self._measured.append(max(math.ceil(elapsed_s * self._control_hz), LEAST))

    def leave_out_next(self) -> None:
        self._leave_out_next = True

    def forget_oldest(self) -> None:
        """An estimate that is too large to be served brings no new measurement: it must not stay for ever."""
        if self._measured:
            self._measured.popleft()
