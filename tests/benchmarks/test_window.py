"""What the window benchmark says: distances in millimetres, a picture from its rows, windows that are windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from benchmarks.report import Report, Row
from benchmarks.window import planning, rollouts
from world_models.planning.window import window_of


def test_errors_are_mean_distances_of_rod_and_puck() -> None:
    places = np.zeros((2, 4))
    frames = np.zeros((2, 1, 4), np.float32)
    frames[0, 0] = (0.03, 0.04, 0.0, 0.0)  # the rod of the first is off by 50 mm
    frames[1, 0] = (0.0, 0.0, 0.0, -0.02)  # the puck of the second by 20 mm

    errors = rollouts._errors(frames, np.zeros_like(frames), places, lambda latents: latents.flatten(1))  # type: ignore[arg-type]

    assert errors["rod error"] == (pytest.approx(25.0), "mm")
    assert errors["puck error"] == (pytest.approx(10.0), "mm")
    assert errors["latent L1"] == (pytest.approx(0.09 / 8), "")


def test_a_picture_is_written(tmp_path: Path) -> None:
    rows = [
        Row(f"H={step}, {poses}", name, metric, float(step), "mm")
        for step in rollouts.HORIZONS
        for poses in rollouts.POSES
        for name in rollouts.WINDOWS
        for metric in ("rod error", "puck error")
    ]
    rollouts.plot(Report("window", {}, rows), str(tmp_path / "x.png"))
    picture = image.imread(tmp_path / "x.png")
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 20


def test_every_named_window_is_one() -> None:
    named = [options for options in (*rollouts.WINDOWS.values(), *planning.HISTORIES.values()) if options]
    assert len(named) == 11
    for options in named:
        assert window_of(options) is not None
