"""From what was measured to the figures that are asked for: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.mixed.cases import ALONE, MIXED, PAINTERS, Case, Measured
from benchmarks.mixed.deployments import DEADLINE, Reached
from benchmarks.mixed.robots import PERIOD_S, Tick
from benchmarks.report import Check, Report, Row, percentile_rows

MAX_MISSED_ALONE, MAX_MISSED_MIXED = 0.1, 1.0
"""Percent."""

MAX_P99_OVER_ALONE = 1.5
MIN_SHARE = 0.7
ABOVE = ("control", "planning")
"""Classes that go before generation."""


def latencies_s(ticks: Sequence[Tick]) -> np.ndarray:
    """An observation without a chunk counts as a period: the least that it can have taken."""
    return np.array([PERIOD_S if tick.latency_s is None else tick.latency_s for tick in ticks])


def missed_percent(ticks: Sequence[Tick]) -> float:
    return 100 * sum(tick.missed for tick in ticks) / len(ticks)


def spare_share(measured: Measured, num_workers: int) -> float:
    """The part of the workers' time in which neither control nor planning ran a step."""
    return 1 - sum(measured.busy_s.get(name, 0.0) for name in ABOVE) / (measured.seconds * num_workers)


def steps_per_s(measured: Measured) -> float:
    """Of all painters together."""
    return sum(len(came.previews_ns) for came in measured.came) / measured.seconds


def add_contention(report: Report, reached: Reached, found: Mapping[Case, Measured]) -> None:
    num_workers = len(next(iter(reached.ranks.values())))
    where = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    alone_hz = steps_per_s(found[PAINTERS])
    shares = {}
    for case, measured in found.items():
        name = f"{where}, {case.name}"
        if case.robot:
            report.rows += _tick_rows(name, case.system, measured.ticks)
        if case.load:
            allowed_hz = alone_hz * spare_share(measured, num_workers)
            shares[case] = steps_per_s(measured) / allowed_hz if allowed_hz > 0 else 0.0
            report.rows += _load_rows(f"{name}: load", case.system, measured, num_workers, shares[case])
    mixed = MIXED[DEADLINE]
    alone_ms, mixed_ms = (float(np.percentile(latencies_s(found[c].ticks), 99)) * 1e3 for c in (ALONE, mixed))
    bound_ms = MAX_P99_OVER_ALONE * alone_ms + reached.max_step_s * 1e3
    report.checks += [
        Check.at_most(f"{where}, alone: missed, %", missed_percent(found[ALONE].ticks), MAX_MISSED_ALONE),
        Check.at_most(f"{where}, mixed: missed, %", missed_percent(found[mixed].ticks), MAX_MISSED_MIXED),
        Check.at_most(f"{where}, mixed: p99, ms (1.5 of alone, and a step)", mixed_ms, round(bound_ms, 1)),
        Check.at_least(f"{where}, mixed: painting, of what the spare time allows", shares[mixed], MIN_SHARE),
    ]


def _tick_rows(case: str, system: str, ticks: Sequence[Tick]) -> list[Row]:
    took_s = latencies_s(ticks)
    sent_late_ms = [(tick.sent_ns - tick.due_ns) / 1e6 for tick in ticks]
    return [
        Row(case, system, "ticks", len(ticks), ""),
        Row(case, system, "missed", missed_percent(ticks), "%"),
        Row(case, system, "unanswered", 100 * float(np.mean([tick.latency_s is None for tick in ticks])), "%"),
        *percentile_rows(case, system, took_s),
        Row(case, system, "p99.9", float(np.percentile(took_s, 99.9)) * 1e3, "ms"),
        Row(case, system, "max", float(np.max(took_s)) * 1e3, "ms"),
        Row(case, system, "sent late", float(np.percentile(sent_late_ms, 99)), "ms"),
    ]


def _load_rows(case: str, system: str, measured: Measured, num_workers: int, share: float) -> list[Row]:
    plan_ms = [took for came in measured.came for took in came.plan_ms]
    iterations = [number for came in measured.came for number in came.plan_iterations]
    values: list[tuple[str, float, str]] = [
        ("painted", steps_per_s(measured), "1/s"),
        ("of spare", share, "x"),
    ]
    values += [
        (name, 100 * measured.busy_s.get(name, 0.0) / measured.seconds / num_workers, "%")
        for name in (*ABOVE, "generation")
    ]
    if plan_ms:
        values += [
            ("plans", len(plan_ms) / measured.seconds, "1/s"),
            ("took", float(np.median(plan_ms)), "ms"),
            ("iter.", float(np.mean(iterations)), ""),
        ]
    values += [
        ("over bound", measured.over_bound, ""),
        ("errors", sum(sum(came.errors.values()) for came in measured.came), ""),
    ]
    return [Row(case, system, *value) for value in values]
