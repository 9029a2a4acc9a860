"""What is measured: sizes, numbers of action sequences, horizons and dtypes; and the figures that are asked for."""

from __future__ import annotations

from dataclasses import dataclass

HORIZONS = (1, 2, 4, 8, 16, 30)


@dataclass(frozen=True)
class Case:
    """Rollouts of one size, number of action sequences and dtype, over several horizons.

    `budget_s` bounds the rounds of one horizon; `calls` is how often the quick systems are measured at least.
    """

    size: str
    num_sequences: int
    horizons: tuple[int, ...]
    dtype: str
    budget_s: float
    calls: int

    def name(self, horizon: int) -> str:
        return f"{self.size} B={self.num_sequences} H={horizon} {self.dtype}"


def cases(quick: bool) -> list[Case]:
    if quick:
        return [
            Case("small", 1, (1, 8), "float32", 0.4, 5),
            Case("small", 1, (1, 8), "bfloat16", 0.4, 5),
            Case("middle", 1, (1, 8, 30), "float32", 1.0, 9),
            Case("middle", 1, (1, 8), "bfloat16", 1.0, 9),
            Case("middle", 16, (1,), "float32", 1.5, 9),
        ]
    dtypes = ("float32", "bfloat16")
    return [
        *(Case("small", count, HORIZONS, dtype, 2.0, 30) for count in (1, 16) for dtype in dtypes),
        *(Case("middle", count, HORIZONS, dtype, 5.0, 21) for count in (1, 16) for dtype in dtypes),
        *(Case("wide", 1, (1, 2, 4, 8), dtype, 5.0, 12) for dtype in dtypes),
    ]


MIN_OVER_NATIVE = {("middle", 1, 30, "float32"): 14.0, ("middle", 16, 30, "float32"): 18.0}
"""Native over served time, by size, number of sequences, horizon and dtype."""


def min_of_cached(case: Case, horizon: int) -> float | None:
    """The share of the cached loop's speed that serving has to reach."""
    if (case.size, case.dtype) != ("middle", "float32"):
        return None
    return 0.95 if horizon >= 8 else 0.85 if horizon == 1 else None
