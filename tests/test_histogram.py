"""Histograms: every value is in the bucket that its bounds say, and quantiles are as near as buckets allow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.histogram import TIME_BOUNDS_US, Histogram, quantile


@given(st.lists(st.floats(0, 1e8), max_size=50))
def test_every_value_is_counted_in_its_bucket(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    edges = [-1.0, *TIME_BOUNDS_US, float("inf")]
    counted = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert histogram.counts == counted
    assert histogram.num_values == len(values)
    assert histogram.total == pytest.approx(sum(values))


@given(st.lists(st.floats(0, 6e7), min_size=1, max_size=80), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    found = quantile(histogram.bounds, histogram.counts, q)
    true = float(np.quantile(values, q, method="inverted_cdf"))
    edges = [0.0, *TIME_BOUNDS_US]
    bucket = int(np.searchsorted(TIME_BOUNDS_US, true))
    assert found is not None
    assert edges[bucket] <= found <= edges[bucket + 1]


def test_nothing_has_no_quantile_and_what_is_over_all_bounds_counts_as_the_last() -> None:
    assert quantile((1.0, 2.0), (0, 0, 0), 0.5) is None
    assert quantile((1.0, 2.0), (0, 0, 5), 0.5) == 2.0
