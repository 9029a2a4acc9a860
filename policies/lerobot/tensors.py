"""What the tasks of these policies take and give, as `mstar_rt.model.policy` names it. No torch."""

from __future__ import annotations

from mstar_rt.model import TensorSpec
from mstar_rt.model.policy import CameraSpec

MAX_STATE = 1e6
"""Far over what encoders count or joints turn."""


def image_spec(camera: CameraSpec, times: tuple[int, ...] = ()) -> TensorSpec:
    """`times`: how many observations there are, oldest first, if more than one."""
    shape = (*times, camera.height, camera.width, 3)
    return TensorSpec(camera.tensor, shape, ("uint8",), f"RGB of camera {camera.name}", "0 to 255")


def state_spec(size: int, times: tuple[int, ...] = ()) -> TensorSpec:
    return TensorSpec("state", (*times, size), ("float32",), "the robot's state", "robot units", max_abs=MAX_STATE)


def actions_spec(action_horizon: int, size: int) -> TensorSpec:
    doc = "actions, the first belonging to the observation's tick"
    return TensorSpec("actions", (action_horizon, size), ("float32",), doc, "robot units")
