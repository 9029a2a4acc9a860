"""What a step will take: measured per node, bucket and size of the step. Pure: no clock, no torch.

A *size* is the number of items in a step: what all its units do in it together, one each where a node has no items. The
first step of each size compiles, captures or warms caches and does not count; of the rest a quantile of the newest
does, so that single outliers move nothing and a slower machine is noticed within a window. Steps of warm-ups alone, in
which everything may be slow, stand for their size until a step of other work has been measured in it; the first of
any size tells how slow they were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable

EngineId = tuple[str, str]

QUANTILE = 0.9
WINDOW = 32
MAX_BUCKETS = 4096
STALE_AFTER = 256
"""Steps of a bucket after which a size that none of them had is forgotten, if an item of it takes no less than of
smaller ones: measured while the machine was slow, it would look too expensive to be run, and measured, ever again."""

MAX_NOTED = 64
"""Steps that are noted before they are learnt from, unless a duration is asked for. One at a time that takes three
times as long: its code and data have left the processor's caches in between."""

UNDIVIDED_TENTHS = 15
"""Where one item alone takes longer than `max_step_ms`, a step may take so many tenths of what it takes: a language
model reads all its weights for one token as for eight, and would come to nothing one by one."""

_KEPT_BITS = 4


class CostModel:
    """Durations of steps by (model, node) and batch key. Observing and predicting cost about a microsecond."""

    def __init__(self) -> None:
        self._noted: list[tuple[EngineId, Hashable, int, int, bool]] = []
        self._curves: dict[tuple[EngineId, Hashable], _Curve] = {}
        self._lately: dict[EngineId, Window] = {}

    def observe(
        self, engine_id: EngineId, batch_key: Hashable, num_items: int, duration_ns: int, is_warm_up: bool = False
    ) -> None:
        """A step of that size took so long. Not for steps in which anything failed."""
        self._noted.append((engine_id, batch_key, num_items, duration_ns, is_warm_up))
        if len(self._noted) >= MAX_NOTED:
            self._learn()

    def _learn(self) -> None:
        """What was noted, in order."""
        for step in self._noted:
            self._learn_from(*step)
        self._noted.clear()

    def _learn_from(
        self, engine_id: EngineId, batch_key: Hashable, num_items: int, duration_ns: int, is_warm_up: bool
    ) -> None:
        curve = self._curves.get((engine_id, batch_key))
        if curve is None:
            if len(self._curves) >= MAX_BUCKETS:
                self._curves.pop(next(iter(self._curves)))
            curve = self._curves[engine_id, batch_key] = _Curve()
        if curve.observe(num_items, duration_ns, is_warm_up):
            lately = self._lately.get(engine_id)
            if lately is None or lately.is_warm_up > is_warm_up:
                lately = self._lately[engine_id] = Window(is_warm_up)
            if lately.is_warm_up == is_warm_up:
                lately.add(duration_ns)

    def predict_ns(self, engine_id: EngineId, batch_key: Hashable, num_items: int) -> int | None:
        """A safe duration of a step of that size; None if no step of the bucket was ever measured.

        Between measured sizes it interpolates, beyond the largest it grows in proportion, below the smallest it stays.
        """
        curve = self._curve(engine_id, batch_key)
        return None if curve is None else curve.predict_ns(num_items)

    def most_items(self, engine_id: EngineId, batch_key: Hashable, limit_ns: int, at_most: int) -> int:
        """How many items, up to `at_most`, a step may have to stay within `limit_ns`: all if nothing was measured, 0 if
        even one is too many."""
        curve = self._curve(engine_id, batch_key)
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

    def largest_size(self, engine_id: EngineId, batch_key: Hashable) -> int:
        """Of those that were measured; 0: none."""
        curve = self._curve(engine_id, batch_key)
        return 0 if curve is None else curve.largest_size

    def lately_ns(self, engine_id: EngineId) -> int | None:
        """What a step of the node took lately, in the batches that it is in now; None if it was never measured."""
        if self._noted:
            self._learn()
        lately = self._lately.get(engine_id)
        return None if lately is None else lately.high_ns

    def _curve(self, engine_id: EngineId, batch_key: Hashable) -> _Curve | None:
        if self._noted:
            self._learn()
        return self._curves.get((engine_id, batch_key))


class Window:
    """The newest durations and a high quantile of them; of those of warm-ups the least."""

    __slots__ = ("_durations", "_num", "high_ns", "is_warm_up", "used_at")

    def __init__(self, is_warm_up: bool = False) -> None:
        self.is_warm_up = is_warm_up
        self.used_at = 0
        self._durations: list[int] = []
        self._num = 0
        self.high_ns = 0

    def add(self, duration_ns: int) -> None:
        durations, num = self._durations, self._num
        self._num = num + 1
        if self.is_warm_up:
            self.high_ns = min(duration_ns, self.high_ns or duration_ns)
            return
        if num < WINDOW:
            durations.append(duration_ns)
        else:
            durations[num % WINDOW] = duration_ns
        if num < 8 or not num & 3:
            self.high_ns = sorted(durations)[int(QUANTILE * (len(durations) - 1))]


class _Curve:
    """One bucket: a window for each size that was measured. Sizes above 16 are kept to an eighth."""

    __slots__ = ("_is_warm_up", "_num_observed", "_seen", "_sizes", "_windows")

    def __init__(self) -> None:
        self._is_warm_up = True  # nothing else was measured yet
        self._num_observed = 0
        self._sizes: list[int] = []
        self._windows: dict[int, Window] = {}
        self._seen: set[int] = set()

    def observe(self, num_items: int, duration_ns: int, is_warm_up: bool) -> bool:
        """Whether it counts."""
        size = rounded_size(num_items)
        if size not in self._seen:
            self._seen.add(size)
            return False
        if size != num_items:
            duration_ns = duration_ns * size // num_items
        self._num_observed += 1
        if self._is_warm_up is not is_warm_up:
            if is_warm_up:
                return False
            self._is_warm_up = False
            self._leave_warm_up(size, duration_ns)
        window = self._windows.get(size)
        if window is None or window.is_warm_up is not is_warm_up or window.used_at <= self._num_observed - STALE_AFTER:
            window = self._windows[size] = Window(is_warm_up)
            self._sizes = sorted(self._windows)
        window.add(duration_ns)
        window.used_at = self._num_observed
        if not self._num_observed % STALE_AFTER:
            since = self._num_observed - STALE_AFTER
            self._forget_dear([size for size, window in self._windows.items() if window.used_at <= since])
        return True

    def _leave_warm_up(self, size: int, duration_ns: int) -> None:
        """The first step of other work tells how slow it was then."""
        warm_ns = self._windows[size].high_ns if size in self._windows else 0
        if duration_ns < warm_ns:
            for window in self._windows.values():
                window.high_ns = window.high_ns * duration_ns // warm_ns
        self._windows[size] = Window()
        self._windows[size].add(duration_ns)
        self._forget_dear([other for other in self._windows if other > size])

    def _forget_dear(self, doubtful: Collection[int]) -> None:
        """Of sizes that are doubtful keep those of which an item takes less than of smaller ones."""
        kept: dict[int, Window] = {}
        below = 0
        for size in sorted(self._windows):
            window = self._windows[size]
            if size in doubtful and (not below or window.high_ns * below >= kept[below].high_ns * size):
                continue
            kept[size] = window
            below = size
        self._windows, self._sizes = kept, list(kept)

    @property
    def largest_size(self) -> int:
        return self._sizes[-1] if self._sizes else 0

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
