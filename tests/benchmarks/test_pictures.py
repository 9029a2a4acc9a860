"""Pictures are drawn from the rows alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from benchmarks.plan import plot as plan_plot
from benchmarks.plan.options import OPTIONS
from benchmarks.report import Report, Row
from benchmarks.report.curves import panels_of
from benchmarks.rollout import plot as rollout_plot

ROWS = [
    Row("middle B=1 H=8 float32", "native loop", "p50", 200.0, "ms"),
    Row("middle B=1 H=8 float32", "native loop", "p95", 210.0, "ms"),
    Row("middle B=1 H=1 float32", "native loop", "p50", 10.0, "ms"),
    Row("middle B=1 H=1 float32", "served", "p50", 5.0, "ms"),
    Row("middle B=1 H=1 bfloat16", "served", "p50", 4.0, "ms"),
    Row("middle B=1 H=1 float32, from a frame", "served", "p50", 7.0, "ms"),
    Row("small B=16 H=1 float32", "served", "p50", 3.0, "ms"),
]


def test_lines_are_medians_by_horizon() -> None:
    assert panels_of(ROWS) == {
        "middle B=1": {
            ("native loop", "float32"): {8: 200.0, 1: 10.0},
            ("served", "float32"): {1: 5.0},
            ("served", "bfloat16"): {1: 4.0},
        },
        "small B=16": {("served", "float32"): {1: 3.0}},
    }


@pytest.mark.parametrize("module", [rollout_plot, plan_plot])
def test_a_picture_is_written(tmp_path: Path, module: object) -> None:
    rows = [*ROWS, Row(f"small H=4{OPTIONS}", "keep_elites", "p50", 9.0, "ms")]
    module.plot(Report("any", {"samples": 64}, rows), str(tmp_path / "x.png"))  # type: ignore[attr-defined]
    picture = image.imread(tmp_path / "x.png")
    assert picture.shape[0] > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 20
