"""The picture: what a worker did over half a second, step by step, and the ticks that came meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.mixed.robots import PERIOD_S, Tick
from benchmarks.report import Report, Row
from mstar_rt.trace import Span

CLASSES = ("control", "planning", "generation")
COLOURS = {"control": "tab:blue", "planning": "tab:orange", "generation": "tab:gray"}
ARRIVED, ANSWERED, MISSED = "black", "tab:green", "tab:red"
SHOWN_S = 0.5


@dataclass(frozen=True)
class Scene:
    """The end of one segment: the steps of its workers, and the robot's ticks."""

    title: str
    steps: Sequence[Span]
    ticks: Sequence[Tick]


EMPTY = Scene("", (), ())


def scene_of(title: str, processes: Mapping[str, Sequence[Span]], ranks: Sequence[int], ticks: Sequence[Tick]) -> Scene:
    """The last SHOWN_S before the last tick had its end."""
    end_ns = max(tick.sent_ns for tick in ticks) + int(PERIOD_S * 1e9)
    begin_ns = end_ns - int(SHOWN_S * 1e9)
    steps = [
        span
        for rank in ranks
        for span in processes.get(f"worker/{rank}", ())
        if span.end_ns > begin_ns and span.start_ns < end_ns and span.track in CLASSES
    ]
    return Scene(title, steps, [tick for tick in ticks if tick.due_ns >= begin_ns])


def plot(report: Report, path: str, scenes: Sequence[Scene]) -> None:
    """Timelines below one another, then how many ticks were missed: by system, and by the number of robots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(15, 2.2 * len(scenes) + 4.0), layout="constrained")
    grid = figure.add_gridspec(len(scenes) + 1, 2, height_ratios=[2.0] * len(scenes) + [3.4])
    for index, scene in enumerate(scenes):
        _draw_scene(figure.add_subplot(grid[index, :]), scene)
    _draw_missed(figure.add_subplot(grid[-1, 0]), report.rows)
    _draw_capacity(figure.add_subplot(grid[-1, 1]), report.rows)
    figure.suptitle("A policy at 20 Hz, a planner and painters on the same worker")
    figure.savefig(path, dpi=130)


def _draw_scene(axis: Any, scene: Scene) -> None:
    """A row per class; a step is a bar, named where it is wide enough. Ticks are lines through all rows."""
    times = [span.start_ns for span in scene.steps] + [tick.sent_ns for tick in scene.ticks]
    begin_ns = min(times, default=0)
    rows = {name: len(CLASSES) - place for place, name in enumerate(CLASSES)}
    for span in scene.steps:
        name = span.track
        start_ms, took_ms = (span.start_ns - begin_ns) / 1e6, span.duration_ns / 1e6
        axis.barh(rows[name], took_ms, left=start_ms, height=0.8, color=COLOURS[name], edgecolor="white", linewidth=0.3)
        if took_ms > SHOWN_S * 1e3 / 80:
            axis.text(
                start_ms + took_ms / 2, rows[name], span.name, ha="center", va="center", fontsize=5, color="white"
            )
    for tick in scene.ticks:
        sent_ms = (tick.sent_ns - begin_ns) / 1e6
        axis.axvline(sent_ms, color=ARRIVED, linewidth=0.8)
        colour = MISSED if tick.missed else ANSWERED
        took_ms = 1e3 * (PERIOD_S if tick.latency_s is None else tick.latency_s)
        axis.barh(len(CLASSES) + 1, took_ms, left=sent_ms, height=0.5, color=colour, alpha=0.7)
    axis.set_yticks([*rows.values(), len(CLASSES) + 1], [*rows, "observation to chunk"], fontsize=8)
    axis.set_title(f"{scene.title}: a line for each observation, green when its chunk came in time", fontsize=9)
    axis.set_xlabel("ms", fontsize=8)
    axis.margins(x=0.005)


def _draw_missed(axis: Any, rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.metric == "missed" and row.case.split(",")[0].endswith(("worker", "workers"))]
    names = [f"{row.case}: {row.system}" for row in own]
    bars = axis.barh(names, [row.value for row in own], color="tab:blue")
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
    axis.tick_params(axis="y", labelsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title("ticks missed, %", fontsize=9)


def _draw_capacity(axis: Any, rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.metric == "missed by the worst" and row.case.split()[1] == "robots"]
    for system in dict.fromkeys(row.system for row in own):
        line = [(int(row.case.split()[0]), row.value) for row in own if row.system == system]
        axis.plot(*zip(*line, strict=True), marker="o", markersize=5, label=system)
    axis.axhline(0.1, color="black", linewidth=0.5)
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("robots at 20 Hz on one worker", fontsize=8)
    axis.set_title("ticks missed by the worst robot, %", fontsize=9)
    if own:
        axis.legend(fontsize=8)
