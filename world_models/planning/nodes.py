"""What the nodes of the search compute. The search's own numbers are few and stay on the CPU, whatever the device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult
from world_models.planning import cem
from world_models.planning.pose import integrate_all

REACH_TOLERANCE = 1e-5
"""A plan that reaches as far as it may, and a pin at its limit, come back rounded."""


class SearchNode:
    """One call after the other: the arrays are tiny."""

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self.run_one(call) for call in calls]

    def run_one(self, call: NodeCall) -> NodeResult:
        raise AssertionError("a search node defines run_one")


class SearchStart(SearchNode):
    """The first Gaussian: cold, from the client's mean, or from the session's last plan."""

    def run_one(self, call: NodeCall) -> NodeResult:
        settings = settings_from(call.params)
        horizon = call.params["rollout_horizon"]
        gaussian = cem.initial_gaussian(horizon, settings, _first_mean(call, horizon, settings))
        rng_state = cem.seeded_rng_state(call.params["seed"])
        return NodeResult({"mean": gaussian.mean, "std": gaussian.std, "rng_state": rng_state})


class Sample(SearchNode):
    """Candidates and their poses; every imagination starts at the last frame of the context."""

    def __init__(self, device: str) -> None:
        self._device = device

    def run_one(self, call: NodeCall) -> NodeResult:
        started_ns = torch.tensor(call.now_ns())
        settings = settings_from(call.params)
        gaussian = cem.Gaussian(call.inputs["mean"], call.inputs["std"])
        noise, rng_state = cem.draw_noise(call.inputs["rng_state"], settings.num_samples, len(gaussian.mean))
        actions = cem.candidates(gaussian, noise, settings)
        poses = integrate_all(call.inputs["pose"].to("cpu"), actions)
        latent = call.inputs["context"][-1].expand(settings.num_samples, -1, -1)
        return NodeResult(
            {
                "actions": actions.to(self._device),
                "poses": poses.to(self._device),
                "latent": latent,
                "rng_state": rng_state,
                "started_ns": started_ns,
            }
        )


class Score(SearchNode):
    """Costs [N] of the imagined ends."""

    def run_one(self, call: NodeCall) -> NodeResult:
        return NodeResult({"costs": cem.latent_cost(call.inputs["latent"], call.inputs["goal_latents"])})


class Refit(SearchNode):
    """The next Gaussian, and the plan as it stands: the best answer if time is up now."""

    def run_one(self, call: NodeCall) -> NodeResult:
        settings = settings_from(call.params)
        before = cem.Gaussian(call.inputs["mean"], call.inputs["std"])
        costs = call.inputs["costs"].to("cpu")
        elites = cem.elites_of(costs, settings)
        after = cem.refit(before, call.inputs["actions"].to("cpu"), elites, settings)
        outputs = {
            "mean": after.mean,
            "std": after.std,
            "plan_actions": cem.finished_plan(after.mean),
            "plan_cost": torch.stack([costs[elites[0]], costs[elites].mean()]),
            "warm_mean": cem.shifted(after.mean),
        }
        flags = _reasons_to_leave(call, after)
        return NodeResult(outputs, leave=bool(flags), flags=flags)


def planning_nodes(device: str) -> dict[str, SearchNode]:
    """Code by node name."""
    return {"search_start": SearchStart(), "sample": Sample(device), "score": Score(), "refit": Refit()}


def settings_from(params: Mapping[str, Any]) -> cem.CemSettings:
    """Raises: InvalidArgument: options that contradict one another."""
    num_samples, num_elites = params["num_samples"], params["num_elites"]
    if num_elites > num_samples:
        raise InvalidArgument(f"option 'num_elites' is {num_elites}, expected at most num_samples = {num_samples}")
    close_gripper, horizon = params.get("close_gripper_step"), params["rollout_horizon"]
    if close_gripper is not None and close_gripper >= horizon:
        raise InvalidArgument(
            f"option 'close_gripper_step' is {close_gripper}, expected a step before rollout_horizon = {horizon}: "
            "the plan ends before it"
        )
    return cem.CemSettings(
        num_samples=num_samples,
        num_elites=num_elites,
        max_norm=params["max_displacement"],
        momentum_mean=params["momentum_mean"],
        momentum_std=params["momentum_std"],
        momentum_mean_gripper=params["momentum_mean_gripper"],
        momentum_std_gripper=params["momentum_std_gripper"],
        pins=_pins(params["pinned_dims"], params["pinned_values"], params["max_displacement"]),
        close_gripper=close_gripper,
    )


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


def _first_mean(call: NodeCall, horizon: int, settings: cem.CemSettings) -> torch.Tensor | None:
    given, warm = call.inputs["initial_mean"], call.inputs["warm_mean"]
    if given is not None:
        if call.params["warm_start"]:
            raise InvalidArgument("both initial_mean and warm_start are given, expected one of them")
        return _searched(given.to("cpu", torch.float32), horizon, settings)
    if warm is None or not call.params["warm_start"]:
        return None
    return cem.within_reach(cem.fitted_to(warm.to("cpu"), horizon), settings.max_norm)


def _searched(actions: torch.Tensor, horizon: int, settings: cem.CemSettings) -> torch.Tensor:
    if actions.shape != (horizon, 7):
        raise InvalidArgument(f"tensor 'initial_mean' has shape {list(actions.shape)}, expected [{horizon}, 7]")
    if actions[:, 3:6].any():
        raise InvalidArgument("tensor 'initial_mean' has a rotation, but only x, y, z and gripper are searched")
    free = [dimension for dimension in range(3) if dimension not in settings.pins]
    farthest = float(actions[:, free].abs().max()) if free else 0.0
    if farthest > settings.max_norm * (1 + REACH_TOLERANCE):
        raise InvalidArgument(
            f"tensor 'initial_mean' moves {farthest:.4g} m along an axis in one step, expected at most "
            f"max_displacement = {settings.max_norm:.4g}"
        )
    return cem.without_rotation(actions)


def _reasons_to_leave(call: NodeCall, after: cem.Gaussian) -> tuple[str, ...]:
    """Why no further iteration should follow: it would end too late, or it could not change much."""
    if call.iteration[0] + 1 == call.params["num_iterations"]:
        return ()
    now_ns = call.now_ns()
    iteration_ns = now_ns - int(call.inputs["started_ns"])
    if call.deadline_ns is not None and now_ns + iteration_ns > call.deadline_ns:
        return ("deadline",)
    if after.std[:, :3].max() < call.params["convergence_tolerance"]:
        return ("converged",)
    return ()
