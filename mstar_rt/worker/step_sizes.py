"""How many items a step may have to keep a bound, from what steps of some sizes took. Pure: no clock.

It is about what steps *usually* take, a quantile that leaves out those which other processes held up: they say nothing
about their size, and smaller ones would be held up as well. But it counts items that cost more than others, if they are
half of all. Of a few steps it is still wrong at times, so it is not believed before there are `ENOUGH`, nor if a
larger size contradicts it, nor when it is old.

A step costs something of its own and something for each item, so an item costs less the more there are.
"""

from __future__ import annotations

from mstar_rt.worker.cost_model import UNDIVIDED_TENTHS, rounded_size

QUANTILE = 0.6
WINDOW = 16
ENOUGH = 3
"""So many steps of a size can count against it."""
STALE_AFTER = 256
"""Steps after which a size that none of them had is forgotten."""


class StepSizes:
    """Of one kind of step: one node and batch key. `limit_ns` is the bound."""

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._windows: dict[int, _Window] = {}
        self._num_observed = 0
        self._most = 1

    @property
    def most(self) -> int:
        """The largest size that is expected to keep the bound, or if nothing does to take little longer than one item;
        1 if nothing was measured."""
        return self._most

    def observe(self, num_items: int, duration_ns: int) -> None:
        """A step of that size took so long."""
        size = rounded_size(num_items)
        window = self._windows.get(size)
        if window is None:
            window = self._windows[size] = _Window()
        self._num_observed += 1
        window.add(duration_ns if size == num_items else duration_ns * size // num_items, self._num_observed)
        if self._num_observed % STALE_AFTER == 0:
            since = self._num_observed - STALE_AFTER
            self._windows = {size: window for size, window in self._windows.items() if window.used_at > since}
        if self._num_observed < 2 * WINDOW or self._num_observed % 4 == 0:
            self._most = self._largest()

    def _largest(self) -> int:
        windows, limit_ns = self._windows, self._limit_ns
        one = windows.get(1)
        if one is not None and one.num >= ENOUGH and one.usual_ns > limit_ns:
            limit_ns = one.usual_ns * UNDIVIDED_TENTHS // 10
        fitting = sorted([size for size, window in windows.items() if window.usual_ns <= limit_ns])
        if not fitting:
            smallest = min(windows)
            return max(1, smallest * limit_ns // windows[smallest].usual_ns)
        largest, now_ns = fitting[-1], windows[fitting[-1]].usual_ns
        most = max([size * limit_ns // max(1, windows[size].usual_ns) for size in fitting])
        too_large = [size for size, window in windows.items() if size > largest and window.num >= ENOUGH]
        if too_large and most >= min(too_large):
            nearest = min(too_large)
            most = largest + (nearest - largest) * (limit_ns - now_ns) // (windows[nearest].usual_ns - now_ns)
        if most == largest and self._may_grow(fitting, limit_ns):
            return largest + 1
        return max(1, most)

    def _may_grow(self, fitting: list[int], limit_ns: int) -> bool:
        """Whether to try one item more than the largest size that fits. What it took does not tell how much of that was
        not for its items: where it was most of it, only a try finds out that more would fit."""
        largest, tried = fitting[-1], self._windows.get(rounded_size(fitting[-1] + 1))
        if tried is not None and tried.num >= ENOUGH:
            return False
        now_ns, rise_ns = self._windows[largest].usual_ns, 0
        if len(fitting) > 1:
            rise_ns = (now_ns - self._windows[fitting[-2]].usual_ns) // (largest - fitting[-2])
        return now_ns + rise_ns <= limit_ns


class _Window:
    """The newest durations of one size."""

    __slots__ = ("_durations", "num", "used_at", "usual_ns")

    def __init__(self) -> None:
        self._durations: list[int] = []
        self.num = 0
        self.usual_ns = 0
        self.used_at = 0

    def add(self, duration_ns: int, number: int) -> None:
        durations = self._durations
        if self.num < WINDOW:
            durations.append(duration_ns)
        else:
            durations[self.num % WINDOW] = duration_ns
        self.num += 1
        self.used_at = number
        if self.num <= WINDOW or self.num % 4 == 0:
            self.usual_ns = sorted(durations)[int(QUANTILE * (len(durations) - 1))]
