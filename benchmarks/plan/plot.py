"""The picture of the plan benchmark."""

from __future__ import annotations

from benchmarks.plan.options import is_option_case
from benchmarks.report import Report
from benchmarks.report.curves import draw_panel, panels_of


def plot(report: Report, path: str) -> None:
    """Time over horizon per size, and a bar per option."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = panels_of(report.rows)
    options = {row.system: row.value for row in report.rows if is_option_case(row.case) and row.metric == "p50"}
    figure = pyplot.figure(figsize=(4.6 * (len(panels) + 1.6), 5.2), layout="constrained")
    axes = figure.subplots(1, len(panels) + 1, width_ratios=[1.0] * len(panels) + [1.2])
    for axis, (title, lines) in zip(axes, panels.items(), strict=False):
        draw_panel(axis, f"{title}: {report.settings['samples']} candidates", lines)
    bars = axes[-1].barh(list(options), list(options.values()), color="tab:blue")
    axes[-1].bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axes[-1].invert_yaxis()
    axes[-1].margins(x=0.12)
    axes[-1].set(xlabel="p50, ms", title=next(row.case for row in report.rows if is_option_case(row.case)))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.suptitle("Plans by the cross-entropy method, one CPU thread")
    figure.savefig(path, dpi=120)
