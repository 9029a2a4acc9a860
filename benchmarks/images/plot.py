"""The picture of the images benchmark."""

from __future__ import annotations

import re

from benchmarks.report import Report
from benchmarks.report.curves import COLOURS

_CASE = re.compile(r"(?P<kind>.+), (?P<batch>\d+) at once")


def plot(report: Report, path: str) -> None:
    """Images per second over how many are asked for at once, a panel for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, dict[str, dict[int, float]]] = {}
    for row in report.rows:
        match = _CASE.fullmatch(row.case)
        if match is not None and row.metric == "images":
            panels.setdefault(match["kind"], {}).setdefault(row.system, {})[int(match["batch"])] = row.value
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), squeeze=False, layout="constrained")
    for axis, (kind, lines) in zip(axes[0], panels.items(), strict=True):
        for index, (system, points) in enumerate(lines.items()):
            axis.plot(*zip(*sorted(points.items()), strict=True), color=COLOURS[index], marker="o", label=system)
        axis.set(title=kind, xlabel="images at once", ylabel="images per second", ylim=(0, None))
        axis.set_xticks(sorted({batch for points in lines.values() for batch in points}))
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
