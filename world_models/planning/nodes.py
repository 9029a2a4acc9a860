"""What the nodes of the search compute. The search's own numbers are few and stay on the CPU, whatever the device."""

from __future__ import annotations

from typing import Any

import torch

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import NodeCall, NodeResult, OneByOne
from world_models.planning import cem, cost, mppi
from world_models.planning.bounds import AXES, REACH_TOLERANCE, bounds_from
from world_models.planning.pose import integrate_all
from world_models.planning.settings import settings_from
from world_models.planning.tree import num_rows, rows_at
from world_models.planning.window import starting_frames

DEADLINE, CONVERGED = "deadline", "converged"
NOT_SEARCHED, FEWER_SAMPLES = "not_searched", "fewer_samples"
MIN_ROW_NS = 1e-3
"""A pace that can be divided by, on whatever clock."""


class SearchStart(OneByOne):
    """The first Gaussian: cold, from the client's mean, or from the session's last plan. No elites are kept yet."""

    def run_one(self, call: NodeCall) -> NodeResult:
        settings = settings_from(call.params)
        horizon = call.params["rollout_horizon"]
        bounds = bounds_from(call.inputs["action_low"], call.inputs["action_high"], settings)
        mean = _first_mean(call, horizon, settings, bounds)
        gaussian = cem.initial_gaussian(horizon, settings, mean, bounds)
        return NodeResult(
            {
                "mean": gaussian.mean,
                "std": gaussian.std,
                "rng_state": cem.seeded_rng_state(call.params["seed"]),
                "bounds": torch.stack(bounds or cem.default_bounds(settings)),
                "elite_actions": torch.zeros(0, horizon, 7),
                "elite_costs": torch.zeros(0),
            }
        )


class Sample(OneByOne):
    """Candidates and their poses; every imagination starts at the last frames of the context.

    The first iteration ends in time if it can: where the pace of the session's last plan says that not all candidates
    would, as many are drawn as do, but no fewer than the elites. Where time is up already the mean is the only
    candidate, so that it has a cost as a plan.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def run_one(self, call: NodeCall) -> NodeResult:
        started_ns = call.now_ns()
        settings = settings_from(call.params)
        gaussian = cem.Gaussian(call.inputs["mean"], call.inputs["std"])
        noise, rng_state = cem.draw_noise(
            call.inputs["rng_state"], settings.num_samples, len(gaussian.mean), settings.branching
        )
        num_candidates = _num_candidates(call, settings, started_ns)
        noise = torch.zeros_like(noise[:, :1]) if num_candidates == 1 else noise[:, :num_candidates]
        actions = cem.candidates(gaussian, noise, settings, cem.Bounds(*call.inputs["bounds"]))
        poses = integrate_all(call.inputs["pose"].to("cpu"), actions)
        frames = starting_frames(call.inputs["context"])
        first_rows = rows_at(0, len(actions), settings.branching)
        return NodeResult(
            {
                "actions": actions.to(self._device),
                "poses": poses.to(self._device),
                "imagined": frames.expand(first_rows, *frames.shape),
                "rng_state": rng_state,
                "started_ns": torch.tensor(started_ns),
            },
            flags=(FEWER_SAMPLES,) if 1 < num_candidates < settings.num_samples else (),
        )


class Score(OneByOne):
    """Costs [N] of the candidates, from the distances that were measured as they were imagined."""

    def run_one(self, call: NodeCall) -> NodeResult:
        collected: Any = call.inputs["goal_distances"]
        return NodeResult({"costs": cost.summed(collected)})


class Refit(OneByOne):
    """The next Gaussian, and the plan as it stands: the best answer if time is up now."""

    def run_one(self, call: NodeCall) -> NodeResult:
        settings = settings_from(call.params)
        before = cem.Gaussian(call.inputs["mean"], call.inputs["std"])
        actions, costs = _all_candidates(call)
        row_ns = _row_ns(call, settings)
        if len(costs) < settings.num_elites:
            return _unsearched(before, actions, costs, row_ns)
        elites = cem.elites_of(costs, settings)
        spread, after = refitted(before, actions[elites], costs[elites], settings)
        kept = elites if settings.keep_elites else elites[:0]
        flags = _reasons_to_leave(call, settings, row_ns, spread if settings.temperature is not None else after)
        return NodeResult(
            {
                "mean": after.mean,
                "std": after.std,
                "plan_actions": cem.finished_plan(after.mean),
                "plan_cost": torch.stack([costs[elites[0]], costs[elites].mean()]),
                "elite_std": spread.std,
                "warm_mean": cem.shifted(after.mean),
                "row_ns": torch.tensor(row_ns, dtype=torch.float64),
                "elite_actions": actions[kept],
                "elite_costs": costs[kept],
            },
            leave=bool(flags),
            flags=flags,
        )


def planning_nodes(device: str) -> dict[str, OneByOne]:
    """Code by node name."""
    return {"search_start": SearchStart(), "sample": Sample(device), "score": Score(), "refit": Refit()}


def _all_candidates(call: NodeCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions [N + E, H, 7] and costs of what was imagined now, and of what is kept from before."""
    actions, costs = call.inputs["actions"].to("cpu"), call.inputs["costs"].to("cpu")
    kept = call.inputs["elite_costs"]
    if not len(kept):
        return actions, costs
    return torch.cat([actions, call.inputs["elite_actions"]]), torch.cat([costs, kept])


def refitted(
    before: cem.Gaussian, chosen: torch.Tensor, costs: torch.Tensor, settings: cem.CemSettings
) -> tuple[cem.Gaussian, cem.Gaussian]:
    """Spread of the elites, and the next Gaussian."""
    if settings.temperature is None:
        spread = cem.spread_of(chosen)
        return spread, cem.blended(before, spread, settings)
    spread = mppi.weighted_spread(chosen, mppi.weights_of(costs, settings.temperature))
    return spread, mppi.moved(before, spread, settings)


def _unsearched(before: cem.Gaussian, actions: torch.Tensor, costs: torch.Tensor, row_ns: float) -> NodeResult:
    """The start of the search as the answer: its mean was the only candidate."""
    (mean,) = cem.without_rotation(actions)
    return NodeResult(
        {
            "mean": mean,
            "std": before.std,
            "plan_actions": cem.finished_plan(mean),
            "plan_cost": costs.repeat(2),
            "elite_std": torch.zeros_like(before.std),
            "warm_mean": cem.shifted(mean),
            "row_ns": torch.tensor(row_ns, dtype=torch.float64),
            "elite_actions": actions[:0],
            "elite_costs": costs[:0],
        },
        leave=True,
        flags=(DEADLINE, NOT_SEARCHED),
    )


def _first_mean(
    call: NodeCall, horizon: int, settings: cem.CemSettings, bounds: cem.Bounds | None
) -> torch.Tensor | None:
    given, warm = call.inputs["initial_mean"], call.inputs["warm_mean"]
    if given is not None:
        if call.params["warm_start"]:
            raise InvalidArgument("both initial_mean and warm_start are given, expected one of them")
        return _searched(given.to("cpu", torch.float32), horizon, settings, bounds)
    if warm is None or not call.params["warm_start"]:
        return None
    return cem.within_reach(cem.fitted_to(warm.to("cpu"), horizon), settings, bounds)


def _searched(
    actions: torch.Tensor, horizon: int, settings: cem.CemSettings, bounds: cem.Bounds | None
) -> torch.Tensor:
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
    searched = cem.without_rotation(actions)
    _check_pins(searched, settings)
    if bounds is not None:
        _check_inside(searched, settings, bounds)
    return searched


def _check_pins(mean: torch.Tensor, settings: cem.CemSettings) -> None:
    """A pinned dimension may be left at rest; any other value than its pin would be ignored."""
    for dimension, value in settings.pins.items():
        given = mean[:, dimension]
        if bool(((given != 0) & ((given - value).abs() > REACH_TOLERANCE)).any()):
            raise InvalidArgument(
                f"tensor 'initial_mean' has {AXES[dimension]} up to {float(given.abs().max()):g}, which is pinned to "
                f"{value:g}: give that or 0, or other pins"
            )


def _check_inside(mean: torch.Tensor, settings: cem.CemSettings, bounds: cem.Bounds) -> None:
    for dimension, axis in enumerate(AXES):
        low, high, values = float(bounds.low[dimension]), float(bounds.high[dimension]), mean[:, dimension]
        if dimension not in settings.pins and bool(
            ((values < low - REACH_TOLERANCE) | (values > high + REACH_TOLERANCE)).any()
        ):
            raise InvalidArgument(
                f"tensor 'initial_mean' has {axis} from {float(values.min()):g} to {float(values.max()):g}, outside of "
                f"its bounds {low:g} to {high:g} (action_low, action_high)"
            )


def _num_candidates(call: NodeCall, settings: cem.CemSettings, now_ns: int) -> int:
    if call.iteration[0] or call.deadline_ns is None:
        return settings.num_samples
    left_ns, row_ns = call.deadline_ns - now_ns, call.inputs["row_ns"]
    if left_ns <= 0:
        return 1
    if row_ns is None or settings.branching:
        return settings.num_samples
    num_in_time = int(left_ns / (float(row_ns) * call.params["rollout_horizon"]))
    return min(settings.num_samples, max(settings.num_elites, num_in_time))


def _row_ns(call: NodeCall, settings: cem.CemSettings) -> float:
    """How long this iteration took for each step that it imagined, all nodes and waiting included."""
    elapsed_ns = call.now_ns() - int(call.inputs["started_ns"])
    rows = num_rows(call.params["rollout_horizon"], len(call.inputs["actions"]), settings.branching)
    return max(elapsed_ns / rows, MIN_ROW_NS)


def _reasons_to_leave(
    call: NodeCall, settings: cem.CemSettings, row_ns: float, spread: cem.Gaussian
) -> tuple[str, ...]:
    """Why no further iteration should follow: it would end too late, or it could not change much."""
    if call.iteration[0] + 1 == call.params["num_iterations"]:
        return ()
    if call.deadline_ns is not None:
        rows = num_rows(call.params["rollout_horizon"], settings.num_samples, settings.branching)
        if call.now_ns() + rows * row_ns > call.deadline_ns:
            return (DEADLINE,)
    if spread.std[:, :3].max() < call.params["convergence_tolerance"]:
        return (CONVERGED,)
    return ()
