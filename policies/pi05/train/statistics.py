"""Normalisation statistics of the demonstrations, in the layout of openpi's norm_stats.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.pi05.train.demonstrations import Demonstrations


def write_statistics(path: Path, demonstrations: Demonstrations) -> None:
    """State: places of the rod. Actions: targets less the place of the rod at the chunk's start."""
    relative = demonstrations.actions - demonstrations.effector[:, None]
    stats = {"state": _of(demonstrations.effector), "actions": _of(relative.reshape(-1, relative.shape[-1]))}
    path.write_text(json.dumps({"norm_stats": stats}, indent=2) + "\n", encoding="utf-8")


def _of(rows: NDArray[np.float32]) -> dict[str, list[float]]:
    values = {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "q01": np.quantile(rows, 0.01, axis=0),
        "q99": np.quantile(rows, 0.99, axis=0),
    }
    return {name: [round(float(number), 6) for number in value] for name, value in values.items()}
