"""What a worker counts of its steps, and what a walk accounts of its time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.meters import SLOT_NS, BusyShare, Meters
from mstar_rt.worker.unit import Unit

MS = 1_000_000


def unit(node: str, criticality: str, ready_ns: int) -> Unit[Any]:
    return Unit("r", ("toy", node), None, criticality, 0, 0, ready_ns, None)


def test_a_step_counts_once_and_every_unit_has_waited() -> None:
    meters = Meters()
    meters.step([unit("a", "control", 0), unit("a", "planning", 4 * MS)], 5 * MS, 7 * MS)
    meters.step([unit("b", "planning", 0)], 10 * MS, 11 * MS)
    found = meters.histograms()
    assert found["run_us/toy/a"].total == 2000.0
    assert sum(found["run_us/toy/a"].counts) == sum(found["batch_size/toy/a"].counts) == 1
    assert found["batch_size/toy/a"].total == 2.0
    assert (found["queue_us/control"].total, found["queue_us/planning"].total) == (5000.0, 11000.0)
    stats = meters.stats([], 12 * MS)
    assert (stats["busy_us/control"], stats["busy_us/planning"], stats["steps_total"]) == (2000.0, 1000.0, 2.0)


def test_the_busy_share_is_of_the_last_ten_seconds() -> None:
    share = BusyShare()
    assert share.share(5 * SLOT_NS) == 0.0
    for second in range(100, 110):
        share.add(second * SLOT_NS + 1, SLOT_NS // 4)
    assert share.share(110 * SLOT_NS - 1) == pytest.approx(0.25, rel=0.01)
    assert share.share(114 * SLOT_NS + SLOT_NS // 2) == pytest.approx(5 * 0.25 / 9.5, rel=0.01)
    assert share.share(130 * SLOT_NS) == 0.0
    share.add(131 * SLOT_NS, 60 * SLOT_NS)
    assert share.share(131 * SLOT_NS) == 1.0


steps = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=20
)


@settings(max_examples=40)
@given(steps)
def test_waiting_and_running_never_overlap_however_many_units_wait(drawn: list[tuple[int, int, int, int]]) -> None:
    """Each step: units that became ready some time before it, a pause, a duration."""
    walk = SimpleNamespace(accounted_ns=0, wait_ns=0, run_ns=0)
    now_ns = first_ready_ns = 100
    for ready_before, pause, duration, num_units in drawn:
        start_ns = now_ns + pause
        for index in range(num_units):
            ready_ns = max(start_ns - ready_before - index, first_ready_ns)
            ActiveWalk.account(walk, ready_ns, start_ns, start_ns + duration)  # type: ignore[arg-type]
        now_ns = start_ns + duration
    assert walk.run_ns == sum(duration for _, _, duration, _ in drawn)
    assert walk.wait_ns + walk.run_ns <= now_ns - first_ready_ns
    assert walk.wait_ns >= 0
