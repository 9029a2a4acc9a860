"""What a step will take: cold steps and outliers do not count, sizes in between and beyond are inferred."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.worker.cost_model import MAX_BUCKETS, STALE_AFTER, WINDOW, CostModel

MS = 1_000_000
NODE = ("m", "n")


def measured(*sizes_ms: tuple[int, float], times: int = 3) -> CostModel:
    costs = CostModel()
    for size, ms in sizes_ms:
        for _ in range(times):
            costs.observe(NODE, None, size, int(ms * MS))
    return costs


def test_nothing_is_known_before_a_warm_step() -> None:
    costs = CostModel()
    assert costs.predict_ns(NODE, None, 1) is None
    costs.observe(NODE, None, 1, 900 * MS)
    assert costs.predict_ns(NODE, None, 1) is None, "the first one compiles"
    assert costs.lately_ns(NODE) is None
    costs.observe(NODE, None, 1, 3 * MS)
    assert costs.predict_ns(NODE, None, 1) == costs.lately_ns(NODE) == 3 * MS
    assert costs.predict_ns(NODE, "other key", 1) is None
    assert costs.predict_ns(("m", "other"), None, 1) is None


def test_what_warm_ups_took_stands_until_other_work_was_measured() -> None:
    costs = CostModel()
    for size in (1, 8):
        for ms in (500, 30, 20, 40):
            costs.observe(NODE, None, size, ms * MS, is_warm_up=True)
    assert costs.predict_ns(NODE, None, 1) == costs.lately_ns(NODE) == 20 * MS, "the quickest, but for the first"
    costs.observe(NODE, None, 1, 2 * MS)
    costs.observe(NODE, None, 1, 600 * MS, is_warm_up=True)
    assert costs.predict_ns(NODE, None, 1) == costs.lately_ns(NODE) == 2 * MS
    assert costs.predict_ns(NODE, None, 8) == 2 * MS, "a tenth of what it was in the warm-up, as well"
    costs.observe(NODE, None, 8, 7 * MS)
    assert costs.predict_ns(NODE, None, 8) == 7 * MS


def test_a_larger_size_from_a_warm_up_never_looks_dearer_than_so_many_alone() -> None:
    costs = CostModel()
    for size, ms in ((1, 2), (8, 90)):
        for _ in range(2):
            costs.observe(NODE, None, size, ms * MS, is_warm_up=True)
    costs.observe(NODE, None, 1, 2 * MS)
    assert costs.predict_ns(NODE, None, 8) == 16 * MS


def test_what_is_shared_seldom_is_remembered_if_it_is_worth_it() -> None:
    costs = measured((1, 2), (8, 5))
    for _ in range(2 * STALE_AFTER):
        costs.observe(NODE, None, 1, 2 * MS)
    assert costs.predict_ns(NODE, None, 8) == 5 * MS
    costs.observe(NODE, None, 8, 9 * MS)
    assert costs.predict_ns(NODE, None, 8) == 9 * MS, "what was measured lately counts alone"


def test_the_first_step_of_each_size_is_cold() -> None:
    costs = measured((1, 2), times=5)
    costs.observe(NODE, None, 8, 500 * MS)
    assert costs.predict_ns(NODE, None, 8) == 16 * MS
    costs.observe(NODE, None, 8, 5 * MS)
    assert costs.predict_ns(NODE, None, 8) == 5 * MS


def test_outliers_move_nothing_and_a_slower_machine_is_noticed() -> None:
    costs = measured((1, 2), times=WINDOW)
    for _ in range(2):
        costs.observe(NODE, None, 1, 400 * MS)
    assert costs.predict_ns(NODE, None, 1) == 2 * MS
    for _ in range(WINDOW):
        costs.observe(NODE, None, 1, 4 * MS)
    assert costs.predict_ns(NODE, None, 1) == 4 * MS


def test_a_size_that_no_longer_runs_is_forgotten_and_not_cold_when_it_runs_again() -> None:
    costs = measured((1, 2), (8, 900))
    for _ in range(2 * STALE_AFTER):
        costs.observe(NODE, None, 1, 2 * MS)
    assert costs.predict_ns(NODE, None, 8) == 16 * MS
    costs.observe(NODE, None, 8, 5 * MS)
    assert costs.predict_ns(NODE, None, 8) == 5 * MS


def test_it_predicts_rather_too_much_than_too_little() -> None:
    costs = CostModel()
    for ms in [1] + [2, 3] * 16:
        costs.observe(NODE, None, 1, ms * MS)
    assert costs.predict_ns(NODE, None, 1) == 3 * MS


def test_sizes_between_beyond_and_below_those_measured() -> None:
    costs = measured((2, 4), (10, 12))
    assert costs.predict_ns(NODE, None, 6) == 8 * MS
    assert costs.predict_ns(NODE, None, 20) == 24 * MS
    assert costs.predict_ns(NODE, None, 1) == 4 * MS
    large = measured((1000, 50))
    assert large.predict_ns(NODE, None, 2000) == 100 * MS


@given(
    st.dictionaries(st.integers(1, 400), st.integers(1, 100), min_size=1, max_size=8),
    st.integers(0, 150 * MS),
    st.integers(1, 500),
)
def test_the_most_items_are_those_that_fit(curve: dict[int, int], limit_ns: int, at_most: int) -> None:
    """Where more items never take less time."""
    growing = sorted(curve.values())
    costs = measured(*zip(sorted(curve), growing, strict=True))
    fits = costs.most_items(NODE, None, limit_ns, at_most)
    assert 0 <= fits <= at_most
    if fits:
        assert (costs.predict_ns(NODE, None, fits) or 0) <= limit_ns
    if fits < at_most:
        assert (costs.predict_ns(NODE, None, fits + 1) or 0) > limit_ns


def test_what_is_not_measured_is_not_limited() -> None:
    assert CostModel().most_items(NODE, None, 1, 16) == 16


def test_keys_without_end_do_not_fill_the_memory() -> None:
    costs = CostModel()
    for key in range(MAX_BUCKETS + 10):
        costs.observe(NODE, key, 1, MS)
        costs.observe(NODE, key, 1, MS)
    assert costs.predict_ns(NODE, 0, 1) is None
    assert costs.predict_ns(NODE, MAX_BUCKETS + 9, 1) == MS
