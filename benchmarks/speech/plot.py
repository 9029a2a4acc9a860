"""The picture of the speech benchmark."""

from __future__ import annotations

import re

from benchmarks.report import Report
from benchmarks.report.curves import COLOURS

DRAWN = (("first audio", "ms"), ("audio", "s/s"), ("underruns", "s"))
_CASE = re.compile(r"(?P<kind>.+), (?P<streams>\d+) at once")


def plot(report: Report, path: str) -> None:
    """Over the number of utterances at once: a row of panels per kind of case, a column per figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = _lines(report)
    kinds = list(dict.fromkeys(kind for kind, *_ in lines))
    systems = list(dict.fromkeys(system for *_, system in lines))
    figure, axes = pyplot.subplots(
        len(kinds), len(DRAWN), figsize=(13, 3.2 * len(kinds) + 0.6), squeeze=False, layout="constrained"
    )
    for row, kind in zip(axes, kinds, strict=True):
        for axis, (metric, unit) in zip(row, DRAWN, strict=True):
            for system in systems:
                points = sorted(lines.get((kind, metric, system), {}).items())
                if points:
                    colour = COLOURS[systems.index(system)]
                    axis.plot(*zip(*points, strict=True), color=colour, marker="o", label=system)
            axis.set(title=kind, xlabel="utterances at once", ylabel=f"{metric}, {unit}")
            axis.grid(visible=True, alpha=0.3)
        row[0].set_yscale("log")
    named = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(systems))
    figure.savefig(path, dpi=120)


def _lines(report: Report) -> dict[tuple[str, str, str], dict[int, float]]:
    """Value by number of utterances; by kind of case, metric and system."""
    drawn = {metric for metric, _ in DRAWN}
    lines: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in report.rows:
        match = _CASE.fullmatch(row.case)
        if match is not None and row.metric in drawn:
            lines.setdefault((match["kind"], row.metric, row.system), {})[int(match["streams"])] = row.value
    return lines
