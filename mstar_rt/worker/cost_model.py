"""What a step will take: measured per node, bucket and size of the step. Pure: no clock, no torch.

A *size* is the number of items in a step: what all its units do in it together, one each where a node has no items. The
first step of each size compiles, captures or warms caches and does not count; of the rest a quantile of the newest
does, so that single outliers move nothing and a slower machine is noticed within a window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable

EngineId = tuple[str, str]

QUANTILE = 0.9
WINDOW = 32
MAX_BUCKETS = 4096
STALE_AFTER = 256
"""Steps of a bucket after which a size that none of them had is forgotten: one that was measured while the machine was
slow would look too expensive to be run, and measured, ever again."""

_KEPT_BITS = 4


class CostModel:
    """Durations of steps by (model, node) and batch key. Observing and predicting cost about a microsecond."""

    def __init__(self) -> None:
        self._curves: dict[tuple[EngineId, Hashable], _Curve] = {}
        self._lately: dict[EngineId, Window] = {}

    def observe(self, engine_id: EngineId, batch_key: Hashable, num_items: int, duration_ns: int) -> None:
        """A step of that size took so long. Not for steps in which anything failed."""
        curve = self._curves.get((engine_id, batch_key))
        if curve is None:
            if len(self._curves) >= MAX_BUCKETS:
                self._curves.pop(next(iter(self._curves)))
            curve = self._curves[engine_id, batch_key] = _Curve()
        if curve.observe(num_items, duration_ns):
            lately = self._lately.get(engine_id)
            if lately is None:
                lately = self._lately[engine_id] = Window()
            lately.add(duration_ns)

    def predict_ns(self, engine_id: EngineId, batch_key: Hashable, num_items: int) -> int | None:
        """A safe duration of a step of that size; None if no step of the bucket was ever measured.

        Between measured sizes it interpolates, beyond the largest it grows in proportion, below the smallest it stays.
        """
        curve = self._curves.get((engine_id, batch_key))
        return None if curve is None else curve.predict_ns(num_items)

    def most_items(self, engine_id: EngineId, batch_key: Hashable, limit_ns: int, at_most: int) -> int:
        """How many items, up to `at_most`, a step may have to stay within `limit_ns`: all if nothing was measured, 0 if
        even one is too many."""
        curve = self._curves.get((engine_id, batch_key))
        if curve is None:
            return at_most
        longest_ns = curve.predict_ns(at_most)
        if longest_ns is None or longest_ns <= limit_ns:
            return at_most
        fits, too_many = 0, at_most
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            predicted_ns = curve.predict_ns(middle)
            assert predicted_ns is not None
            if predicted_ns <= limit_ns:
                fits = middle
            else:
                too_many = middle
        return fits

    def lately_ns(self, engine_id: EngineId) -> int | None:
        """What a step of the node took lately, in the batches that it is in now; None if it was never measured."""
        lately = self._lately.get(engine_id)
        return None if lately is None else lately.high_ns


class Window:
    """The newest durations and a high quantile of them."""

    __slots__ = ("_durations", "_num", "high_ns", "used_at")

    def __init__(self) -> None:
        self.used_at = 0
        self._durations: list[int] = []
        self._num = 0
        self.high_ns = 0

    def add(self, duration_ns: int) -> None:
        durations, num = self._durations, self._num
        self._num = num + 1
        if num < WINDOW:
            durations.append(duration_ns)
        else:
            durations[num % WINDOW] = duration_ns
        if num < 8 or not num & 3:
            self.high_ns = sorted(durations)[int(QUANTILE * (len(durations) - 1))]


class _Curve:
    """One bucket: a window for each size that was measured. Sizes above 16 are kept to an eighth."""

    __slots__ = ("_num_observed", "_seen", "_sizes", "_windows")

    def __init__(self) -> None:
        self._num_observed = 0
        self._sizes: list[int] = []
        self._windows: dict[int, Window] = {}
        self._seen: set[int] = set()

    def observe(self, num_items: int, duration_ns: int) -> bool:
        """Whether it counts."""
        size = rounded_size(num_items)
        window = self._windows.get(size)
        if window is None:
            if size not in self._seen:
                self._seen.add(size)
                return False
            window = self._windows[size] = Window()
            insort(self._sizes, size)
        window.add(duration_ns if size == num_items else duration_ns * size // num_items)
        window.used_at = self._num_observed = self._num_observed + 1
        if not self._num_observed % STALE_AFTER:
            self._forget_stale()
        return True

    def _forget_stale(self) -> None:
        since = self._num_observed - STALE_AFTER
        self._windows = {size: window for size, window in self._windows.items() if window.used_at > since}
        self._sizes = sorted(self._windows)

    def predict_ns(self, num_items: int) -> int | None:
        window = self._windows.get(num_items)
        if window is not None:
            return window.high_ns
        sizes = self._sizes
        if not sizes:
            return None
        index = bisect_left(sizes, num_items)
        if index == 0:
            return self._windows[sizes[0]].high_ns
        below = sizes[index - 1]
        below_ns = self._windows[below].high_ns
        if index == len(sizes):
            return below_ns * num_items // below
        above = sizes[index]
        return below_ns + (self._windows[above].high_ns - below_ns) * (num_items - below) // (above - below)


def rounded_size(num_items: int) -> int:
    """Down to as many leading bits as matter: sizes up to 16 are as they are."""
    shift = max(0, num_items.bit_length() - _KEPT_BITS)
    return num_items >> shift << shift
