"""What a request asks of the search, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mstar_rt.errors import InvalidArgument
from world_models.planning import cem
from world_models.planning.bounds import REACH_TOLERANCE
from world_models.planning.options import DEFAULT_TEMPERATURE
from world_models.planning.tree import checked_branching


def settings_from(params: Mapping[str, Any]) -> cem.CemSettings:
    """Raises: InvalidArgument: options that contradict one another."""
    num_samples, num_elites = params["num_samples"], params["num_elites"]
    if num_elites > num_samples:
        raise InvalidArgument(f"option 'num_elites' is {num_elites}, expected at most num_samples = {num_samples}")
    horizon = params["rollout_horizon"]
    return cem.CemSettings(
        num_samples=num_samples,
        num_elites=num_elites,
        max_norm=params["max_displacement"],
        momentum_mean=params["momentum_mean"],
        momentum_std=params["momentum_std"],
        momentum_mean_gripper=params["momentum_mean_gripper"],
        momentum_std_gripper=params["momentum_std_gripper"],
        pins=_pins(params["pinned_dims"], params["pinned_values"], params["max_displacement"]),
        close_gripper=_close_gripper(params.get("close_gripper_step"), horizon),
        branching=checked_branching(params["tree_branching"], num_samples, horizon),
        include_mean=params["include_mean"],
        keep_elites=params["keep_elites"],
        temperature=_temperature(params["planner"], params.get("temperature")),
    )


def _close_gripper(step: int | None, horizon: int) -> int | None:
    if step is not None and step >= horizon:
        raise InvalidArgument(
            f"option 'close_gripper_step' is {step}, expected a step before rollout_horizon = {horizon}: "
            "the plan ends before it"
        )
    return step


def _temperature(planner: str, given: float | None) -> float | None:
    if planner == "mppi":
        return DEFAULT_TEMPERATURE if given is None else given
    if given is not None:
        raise InvalidArgument(f"option 'temperature' is {given:g}, but planner is {planner!r}: it is for 'mppi' alone")
    return None


def _pins(dims: Sequence[float], values: Sequence[float], max_displacement: float) -> dict[int, float]:
    if len(dims) != len(values):
        raise InvalidArgument(f"there are {len(dims)} pinned_dims and {len(values)} pinned_values, expected as many")
    for dimension in dims:
        if dimension != int(dimension) or list(dims).count(dimension) > 1:
            raise InvalidArgument(f"option 'pinned_dims' is {tuple(dims)}, expected different whole numbers 0 to 3")
    pins = {int(dimension): float(value) for dimension, value in zip(dims, values, strict=True)}
    for dimension, value in pins.items():
        limit = cem.GRIPPER_CLOSED if dimension == cem.GRIPPER_DIM else max_displacement
        if abs(value) > limit + REACH_TOLERANCE:
            raise InvalidArgument(
                f"dimension {dimension} is pinned to {value:g}, expected at most {limit:g} either way"
            )
    return pins
