"""The published implementation's arrays, as arguments of client calls."""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
PUBLISHED_OPTIONS = {
    "rollout": "rollout_horizon", "samples": "num_samples", "topk": "num_elites", "cem_steps": "num_iterations",
    "momentum_mean": "momentum_mean", "momentum_std": "momentum_std", "maxnorm": "max_displacement",
    "close_gripper": "close_gripper_step",
}  # fmt: skip


def close(got: np.ndarray | None, want: np.ndarray, tolerance: float) -> None:
    assert got is not None
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def frames_of(golden: Arrays, row: int) -> np.ndarray:
    """[T, H, W, 3], normalised."""
    return np.ascontiguousarray(golden["video"][row].transpose(1, 2, 3, 0))


def past_of(golden: Arrays, row: int) -> dict[str, Any]:
    return {
        "state": golden["states"][row, 1],
        "context_actions": golden["actions"][row, :1],
        "context_states": golden["states"][row, :2],
    }


def plan_options(settings: dict[str, Any], name: str) -> dict[str, Any]:
    chosen = settings[name]
    options = {PUBLISHED_OPTIONS[key]: value for key, value in chosen.items() if key != "axis"}
    return {**options, "pinned": {int(d): v for d, v in chosen["axis"].items()}, "seed": settings["seed"]}
