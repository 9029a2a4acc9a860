"""The picture of the rollout benchmark."""

from __future__ import annotations

from benchmarks.report import Report
from benchmarks.report.curves import draw_panel, panels_of


def plot(report: Report, path: str) -> None:
    """Time over horizon, one panel per size and number of action sequences."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = panels_of(report.rows)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = (4.6 * columns, 3.9 * rows + 0.8)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        draw_panel(axis, title, lines)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.suptitle("Rollouts of B action sequences, one CPU thread")
    figure.savefig(path, dpi=120)
