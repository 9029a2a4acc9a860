"""What the rollout benchmark makes of its measurements, and that it measures what is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.report import Report
from benchmarks.rollout import measure
from benchmarks.rollout.cases import Case, cases, min_of_cached
from benchmarks.rollout.systems import CACHED, SERVED

CASE = Case("middle", 16, (1, 8), "float32", 1.0, 3)


def arrivals(first_ms: float, constant_ms: float, slope_ms: float, horizon: int) -> list[float]:
    steps = [first_ms, *(constant_ms + slope_ms * t for t in range(1, horizon))]
    return (np.cumsum(steps) / 1e3).tolist()


def test_the_fit_finds_what_a_step_costs() -> None:
    report = Report("rollout", {})
    calls = [arrivals(50.0 + extra, 3.0, 0.2, 8) for extra in (0.0, 7.0)]
    measure._fit_steps(report, CASE, dict.fromkeys((CACHED, SERVED), calls), 8)
    found = {row.metric: row.value for row in report.rows if row.system == SERVED}
    assert found["a"] == pytest.approx(3.0)
    assert found["b"] == pytest.approx(0.2)
    assert found["largest departure"] == pytest.approx(0.0, abs=1e-6)


def test_nan_is_no_equality() -> None:
    exact, broken = np.zeros((2, 4, 3), np.float32), np.zeros((2, 4, 3), np.float32)
    broken[1, 2, 1] = np.nan
    assert not measure._largest_error([exact, broken], [exact, exact]) <= measure.MAX_ERROR
    with pytest.raises(ValueError, match="longer"):
        measure._largest_error([exact], [exact, exact])


def test_the_share_is_of_the_cached_loops_speed() -> None:
    report = Report("rollout", {})
    measure._against_cached(report, "fast", {CACHED: 0.96, SERVED: 1.0}, 0.95)
    measure._against_cached(report, "slow", {CACHED: 0.8, SERVED: 1.0}, 0.95)
    assert [(check.value, check.holds) for check in report.checks] == [(0.96, True), (0.8, False)]


def test_every_case_that_is_asked_for() -> None:
    asked = {(case.size, case.num_sequences, case.dtype): case.horizons for case in cases(quick=False)}
    for size in ("small", "middle"):
        for num_sequences in (1, 16):
            for dtype in ("float32", "bfloat16"):
                assert asked[size, num_sequences, dtype] == (1, 2, 4, 8, 16, 30)
    assert asked["wide", 1, "float32"] == (1, 2, 4, 8)
    assert [min_of_cached(CASE, horizon) for horizon in (1, 2, 8, 30)] == [0.85, None, 0.95, 0.95]
