"""The costs per hop are measured to their end, with every case, against every baseline."""

from __future__ import annotations

import pytest

from benchmarks.report import Report
from benchmarks.runtime.hops import CONCURRENCY, ONE_RANK, PLAIN, SIZES, TWO_RANKS, ZEROMQ, Effort, measure

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

LEAST = Effort(repeats=1, long_loop=100, concurrent_steps=2, round_trips=20)


async def test_every_case_is_measured() -> None:
    report = Report("hops", {})
    await measure(report, LEAST)
    measured = {(row.case, row.system) for row in report.rows}
    for system in (ONE_RANK, TWO_RANKS):
        assert {(f"{num} requests at once", system) for num in CONCURRENCY} < measured
    for system in (ONE_RANK, TWO_RANKS, ZEROMQ):
        assert {(f"hop, {label}", system) for label in SIZES} < measured
    assert {("DynamicLoop step", PLAIN), ("request round trip, 1 kB", ZEROMQ)} < measured
    assert all(row.value > 0 for row in report.rows if "at once" in row.case)
    names = " ".join(check.name for check in report.checks)
    assert all(f"{num} at once over one alone, {TWO_RANKS}" in names for num in CONCURRENCY[1:])
