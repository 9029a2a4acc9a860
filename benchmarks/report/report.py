"""The one format of all benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

PERCENTILES = (50, 95, 99)
TABLE_WIDTH = 150


@dataclass(frozen=True)
class Row:
    """One figure: what was run (`case`), by whom (`system`), which statistic (`metric`)."""

    case: str
    system: str
    metric: str
    value: float
    unit: str


@dataclass(frozen=True)
class Check:
    """A figure that was asked for, with its bound, as measured, whether it holds or not."""

    name: str
    value: float
    bound: str
    holds: bool

    @classmethod
    def at_least(cls, name: str, value: float, bound: float) -> Check:
        return cls(name, value, f">= {bound:g}", value >= bound)

    @classmethod
    def at_most(cls, name: str, value: float, bound: float) -> Check:
        return cls(name, value, f"<= {bound:g}", value <= bound)


@dataclass
class Report:
    """Everything one run of one benchmark found."""

    benchmark: str
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def as_plain(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "machine": describe_machine(),
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "checks": [asdict(check) for check in self.checks],
        }


def describe_machine() -> dict[str, Any]:
    import torch

    return {
        "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def percentile_rows(case: str, system: str, seconds: Sequence[float] | np.ndarray) -> list[Row]:
    """p50, p95 and p99 in milliseconds."""
    values = np.percentile(np.asarray(seconds) * 1e3, PERCENTILES)
    return [Row(case, system, f"p{p}", float(v), "ms") for p, v in zip(PERCENTILES, values, strict=True)]


def finish(report: Report, args: argparse.Namespace, plot: Callable[[Report, str], None] | None = None) -> int:
    """Print the table and write the files. The exit status is 0 whether the checks hold or not.

    `plot` draws the picture at a path; without it there are bars of every p50 (see `bars`).
    """
    _print(report)
    if args.json:
        Path(args.json).write_text(json.dumps(report.as_plain(), indent=1))
    if args.png:
        (plot or bars)(report, args.png)
    return 0


def _print(report: Report) -> None:
    """Cases with the same figures share a table."""
    console = Console(width=TABLE_WIDTH, markup=False)
    console.print(f"{report.benchmark}  {report.settings}")
    metrics_of: dict[str, list[tuple[str, str]]] = {}
    for row in report.rows:
        metrics_of.setdefault(row.case, []).append((row.metric, row.unit))
    columns_of = {case: tuple(sorted(set(metrics), key=metrics.index)) for case, metrics in metrics_of.items()}
    for columns in dict.fromkeys(columns_of.values()):
        cases = {case for case, own in columns_of.items() if own == columns}
        console.print(_table([row for row in report.rows if row.case in cases], columns))
    for check in report.checks:
        console.print(f"{'holds' if check.holds else 'FALLS SHORT'}: {check.name}: {check.value:.3f} ({check.bound})")


def _table(rows: Sequence[Row], columns: Sequence[tuple[str, str]]) -> Table:
    table = Table()
    table.add_column("case")
    table.add_column("system")
    for metric, unit in columns:
        table.add_column(f"{metric}\n{unit}" if unit else metric, justify="right")
    for case, system in dict.fromkeys((row.case, row.system) for row in rows):
        values = {(r.metric, r.unit): r.value for r in rows if (r.case, r.system) == (case, system)}
        table.add_row(case, system, *(_figure(values[key]) if key in values else "" for key in columns))
    return table


def _figure(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}"


def bars(report: Report, path: str, metric: str = "p50") -> None:
    """Of one metric, in milliseconds, by case and system."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in report.rows if row.metric == metric]
    cases = list(dict.fromkeys(row.case for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    figure, axes = pyplot.subplots(figsize=(2 + 1.4 * len(cases), 4.5), layout="constrained")
    width = 0.8 / max(len(systems), 1)
    for index, system in enumerate(systems):
        values = [next((r.value for r in rows if (r.case, r.system) == (case, system)), np.nan) for case in cases]
        axes.bar(np.arange(len(cases)) + index * width, values, width, label=system)
    axes.set_xticks(np.arange(len(cases)) + 0.4 - width / 2, cases, rotation=20, ha="right")
    axes.set_ylabel(f"{metric}, ms")
    axes.set_title(report.benchmark)
    axes.legend()
    figure.savefig(path, dpi=120)
