"""The picture of the control benchmark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.control.overhead import ECHO, ONE
from benchmarks.control.shipped import SERVED
from benchmarks.report import Report, Row

SPLIT = "where a chunk's time goes, p50"
PANELS = (
    ("seam p50", "seam, p50, mm"),
    ("jerk ratio", "jerk ratio"),
    ("late chunks", "chunks that missed their time, %"),
)
_ADDED = re.compile(r"(\d+) ms added")


def plot(report: Report, path: str) -> None:
    """Latency of one robot, a chunk's time by node, and how smooth the motion is over the added delay."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(14, 8), layout="constrained")
    _draw_latency(axes[0, 0], report.rows)
    _draw_split(axes[0, 1], report.rows)
    _draw_crowds(axes[0, 2], report.rows)
    for axis, (metric, title) in zip(axes[1], PANELS, strict=True):
        _draw_over_delay(axis, report.rows, metric, title)
    axes[1, 0].legend(fontsize=8)
    figure.suptitle("Control sessions")
    figure.savefig(path, dpi=120)


def _draw_latency(axis: Any, rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.case == ONE and row.unit == "ms" and row.metric != "max"]
    systems = list(dict.fromkeys(row.system for row in own))
    metrics = list(dict.fromkeys(row.metric for row in own))
    width = 0.8 / max(len(systems), 1)
    for index, system in enumerate(systems):
        values = [next(row.value for row in own if (row.system, row.metric) == (system, m)) for m in metrics]
        places = [place + index * width for place in range(len(metrics))]
        axis.bar(places, values, width, label=system, color="tab:gray" if system == ECHO else None)
    axis.set_xticks([place + width for place in range(len(metrics))], metrics)
    axis.set(ylabel="ms", title="policy that does nothing, 50 Hz")
    axis.legend(fontsize=8)


def _draw_split(axis: Any, rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.case == SPLIT and row.system == SERVED]
    bars = axis.barh([row.metric for row in own], [row.value for row in own])
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set(xlabel="ms", title="shipped policy: a chunk's time")


def _draw_crowds(axis: Any, rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.metric == "chunks" and row.unit == "Hz"]
    for system in dict.fromkeys(row.system for row in own):
        line = [(int(re.findall(r"\d+", row.case)[0]), row.value) for row in own if row.system == system]
        axis.plot(*zip(*line, strict=True), marker="o", label=system)
    axis.set(xlabel="robots at once", ylabel="chunks per second", title="shipped policy: batching", ylim=(0, None))
    axis.legend(fontsize=8)


def _draw_over_delay(axis: Any, rows: Sequence[Row], metric: str, title: str) -> None:
    own = [(match, row) for row in rows if row.metric == metric and (match := _ADDED.fullmatch(row.case))]
    for system in dict.fromkeys(row.system for _, row in own):
        line = [(int(match[1]), row.value) for match, row in own if row.system == system]
        axis.plot(*zip(*line, strict=True), marker="o", markersize=3, label=f"chunking {system}")
    axis.set(xlabel="added delay, ms", title=title)
    axis.grid(visible=True, alpha=0.3)
