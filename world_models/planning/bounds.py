"""Where the searched actions may lie: within max_displacement of rest, or within the client's own bounds."""

from __future__ import annotations

import torch

from mstar_rt.errors import InvalidArgument
from world_models.planning import cem

REACH_TOLERANCE = 1e-5
"""A plan that reaches as far as it may, and a pin at its limit, come back rounded."""
AXES = ("x", "y", "z", "gripper")


def bounds_from(low: torch.Tensor | None, high: torch.Tensor | None, settings: cem.CemSettings) -> cem.Bounds | None:
    """The client's `action_low` and `action_high` [7], each in place of the default; None if neither is given.

    Raises: InvalidArgument: a bound beyond max_displacement or the gripper's range, a low one over a high one, bounds
        that leave out a pin, the closing of the gripper, or no rotation at all.
    """
    if low is None and high is None:
        return None
    default = cem.default_bounds(settings)
    bounds = cem.Bounds(
        default.low if low is None else _searched("action_low", low, settings),
        default.high if high is None else _searched("action_high", high, settings),
    )
    for name, given, outside in (("action_low", low, 1.0), ("action_high", high, -1.0)):
        if given is not None and (given[3:6] * outside > 0).any():
            raise InvalidArgument(f"tensor {name!r} leaves out a rotation of 0, but plans do not rotate: give 0 there")
    _check_order(bounds)
    _check_fixed(bounds, settings)
    return bounds


def _searched(name: str, given: torch.Tensor, settings: cem.CemSettings) -> torch.Tensor:
    searched = cem.without_rotation(given.to("cpu", torch.float32))
    limits = torch.tensor([settings.max_norm] * 3 + [cem.GRIPPER_CLOSED])
    for axis, value, limit in zip(AXES, searched.tolist(), limits.tolist(), strict=True):
        if abs(value) > limit + REACH_TOLERANCE:
            advice = "" if axis == "gripper" else " = max_displacement; raise that to move farther"
            raise InvalidArgument(
                f"tensor {name!r} has {axis} {value:g}, expected at most {limit:g} either way{advice}"
            )
    return searched


def _check_order(bounds: cem.Bounds) -> None:
    for axis, low, high in zip(AXES, bounds.low.tolist(), bounds.high.tolist(), strict=True):
        if low > high:
            raise InvalidArgument(
                f"the bounds of {axis} are {low:g} to {high:g}, expected action_low up to action_high"
            )


def _check_fixed(bounds: cem.Bounds, settings: cem.CemSettings) -> None:
    """What is not searched lies within the bounds all the same."""
    for dimension, value in settings.pins.items():
        low, high = float(bounds.low[dimension]), float(bounds.high[dimension])
        if not low - REACH_TOLERANCE <= value <= high + REACH_TOLERANCE:
            raise InvalidArgument(
                f"dimension {dimension} is pinned to {value:g}, outside of its bounds {low:g} to {high:g}; "
                "change the pin or the bounds"
            )
    if settings.close_gripper is not None and float(bounds.high[cem.GRIPPER_DIM]) < cem.GRIPPER_CLOSED:
        raise InvalidArgument(
            f"option 'close_gripper_step' closes the gripper to {cem.GRIPPER_CLOSED:g}, over its bound "
            f"{float(bounds.high[cem.GRIPPER_DIM]):g} in action_high"
        )
