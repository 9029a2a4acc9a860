"""Time over the rollout horizon, one panel per size: the picture of benchmarks whose cases differ in H and dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.report import Row

COLOURS = ("tab:red", "tab:blue", "tab:gray", "tab:green")
"""By order of the systems."""

STYLES = {"float32": "-", "bfloat16": "--"}

Line = dict[int, float]
"""p50 in milliseconds by horizon."""

Panels = dict[str, dict[tuple[str, str], Line]]
"""By the case less its horizon and dtype, then by system and dtype."""

_CASE = re.compile(r"(?P<panel>.+) H=(?P<horizon>\d+) (?P<dtype>float32|bfloat16)")


def panels_of(rows: Sequence[Row]) -> Panels:
    panels: Panels = {}
    for row in rows:
        match = _CASE.fullmatch(row.case)
        if match is not None and row.metric == "p50":
            lines = panels.setdefault(match["panel"], {})
            lines.setdefault((row.system, match["dtype"]), {})[int(match["horizon"])] = row.value
    return panels


def draw_panel(axis: Any, title: str, lines: Mapping[tuple[str, str], Line]) -> None:
    """float32 drawn through, bfloat16 dashed; both axes logarithmic."""
    systems = list(dict.fromkeys(system for system, _ in lines))
    for (system, dtype), line in lines.items():
        horizons = sorted(line)
        axis.plot(
            horizons, [line[horizon] for horizon in horizons], STYLES[dtype], color=COLOURS[systems.index(system)],
            marker="o", markersize=3, label=f"{system}, {dtype}",
        )  # fmt: skip
    ticks = sorted({horizon for line in lines.values() for horizon in line})
    axis.set(xscale="log", yscale="log", xlabel="rollout horizon H, steps", ylabel="p50, ms", title=title)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.grid(visible=True, alpha=0.3)
