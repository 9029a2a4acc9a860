"""Counts of values by size: what a scrape turns into quantiles, and cheap enough for every step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

TIME_BOUNDS_US = (
    50.0, 100.0, 200.0, 300.0, 500.0, 750.0,
    1e3, 1.5e3, 2e3, 3e3, 4e3, 5e3, 7.5e3, 10e3, 12.5e3, 15e3, 20e3, 25e3, 30e3, 33.3e3, 40e3, 50e3, 66.7e3, 75e3,
    100e3, 150e3, 200e3, 300e3, 500e3, 1e6, 2e6, 5e6, 10e6, 60e6,
)  # fmt: skip
"""Microseconds, close together around the periods of control: 10, 15, 20, 25, 30, 40, 50, 80, 100 Hz."""

COUNT_BOUNDS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)


class Histogram:
    """`counts[i]` values up to `bounds[i]` and over the one before; the last are those over all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = TIME_BOUNDS_US) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def num_values(self) -> int:
        return sum(self.counts)


def quantile(bounds: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The value below which the share `q` of what was counted lies, linear inside a bucket; None if there is nothing.

    What lies over all bounds counts as the largest bound: a histogram does not know more.
    """
    wanted = q * sum(counts)
    if not any(counts):
        return None
    seen, lower = 0.0, 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * max(wanted - seen, 0.0) / count
        seen, lower = seen + count, upper
    return lower
