"""`DelayEstimate`: how many actions the robot will consume while a chunk is made."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 10


class DelayEstimate:
    """The maximum over the last WINDOW chunks of the ticks between an observation and its chunk: what a robot consumes
    that has actions for each of them, which one that holds has not.

    The first chunk, and the first one after `warm_up_again`, includes what is done once only and is left out. But the
    very first counts until there is another one, in control periods, as the robot may have stood still for it: with too
    large a delay a chunk goes on with what the robot was going to do anyway, with too small a one the robot jumps.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._first: int | None = None
        self._warming_up = True

    @property
    def delay(self) -> int | None:
        """None: no chunk has come yet."""
        return max(self._recent, default=self._first)

    def answered(self, num_ticks: int, num_periods: float) -> None:
        if self._warming_up:
            self._warming_up = False
            self._first = max(num_ticks, math.ceil(num_periods)) if self._first is None else self._first
        else:
            self._recent.append(num_ticks)

    def warm_up_again(self) -> None:
        """A worker or the connection was lost: what comes next says nothing about what comes after it."""
        self._warming_up = True
