"""The search around the network itself, on paged memory: what is shared or skipped costs the same as what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from world_models.planning import cem

Tensors = dict[str, torch.Tensor]
HORIZON, NUM_SAMPLES, SEED = 3, 12, 5
SMALL: dict[str, Any] = {
    "rollout_horizon": HORIZON, "num_samples": NUM_SAMPLES, "num_elites": NUM_SAMPLES, "num_iterations": 1, "seed": SEED,
}  # fmt: skip
TREES = [(), (2.0, 3.0, 2.0), (1.0, 12.0, 1.0), (12.0, 1.0, 1.0), (3.0, 1.0, 4.0)]


@pytest.fixture
def inputs(golden: Tensors) -> Tensors:
    """A context of two frames and three goals."""
    return {
        "context_latents": golden["frame_latents_normed"][0, :2],
        "context_states": golden["states"][0, :2],
        "context_actions": golden["actions"][0, :1],
        "state": golden["states"][0, 1],
        "goal_latents": golden["frame_latents_normed"].flatten(0, 1)[1:4],
        "goal_weights": torch.tensor([0.5, 1.0, 2.0]),
    }


def context_of(inputs: Tensors) -> Tensors:
    return {name: tensor for name, tensor in inputs.items() if not name.startswith("goal")}


def drawn(branching: tuple[float, ...]) -> torch.Tensor:
    """The candidates [N, H, 7] of the first iteration."""
    settings = cem.CemSettings(num_samples=NUM_SAMPLES)
    whole = tuple(int(branches) for branches in branching)
    noise, _ = cem.draw_noise(cem.seeded_rng_state(SEED), NUM_SAMPLES, HORIZON, whole)
    return cem.candidates(cem.initial_gaussian(HORIZON, settings), noise, settings)


@pytest.mark.parametrize("branching", TREES)
@pytest.mark.parametrize("goal_use", ["last", "per_step", "nearest"])
def test_costs_are_those_of_the_candidates_rolled_out_one_by_one(
    driver: Any, inputs: Tensors, branching: tuple[float, ...], goal_use: str
) -> None:
    if goal_use == "last":
        inputs = inputs | {"goal_latents": inputs["goal_latents"][:1]}
        del inputs["goal_weights"]
    served = driver.run_one("plan", inputs, **SMALL, goal_use=goal_use, tree_branching=branching)
    rolled = [
        driver.run_one("rollout", inputs | {"actions": actions[None]}, output="goal_distance", goal_use=goal_use)
        for actions in drawn(branching)
    ]
    distances = torch.stack([torch.cat(one.emitted["goal_distance"]) for one in rolled])
    costs = distances.sum(dim=1) if goal_use == "per_step" else distances[:, -1]
    expected = torch.stack([costs.min(), costs.mean()])
    torch.testing.assert_close(served.emitted["plan_cost"][0], expected, rtol=0, atol=1e-5)
    assert driver.num_pages_held == 0


@pytest.mark.parametrize("kind", ["l1", "l2", "cosine"])
def test_the_cost_is_what_the_client_would_compute(driver: Any, inputs: Tensors, kind: str) -> None:
    goal = inputs["goal_latents"][:1]
    given = context_of(inputs) | {"goal_latents": goal}
    served = driver.run_one("plan", given, **SMALL, cost=kind)
    rolled = driver.run_one("rollout", context_of(inputs) | {"actions": drawn(())}, output="last_latent")
    latents = rolled.emitted["latent"][-1]
    if kind == "l1":
        costs = (latents - goal).abs().mean(dim=(1, 2))
    elif kind == "l2":
        costs = (latents - goal).square().mean(dim=2).sqrt().mean(dim=1)
    else:
        costs = 1 - torch.nn.functional.cosine_similarity(latents, goal.expand_as(latents), dim=2).mean(dim=1)
    torch.testing.assert_close(served.emitted["plan_cost"][0], torch.stack([costs.min(), costs.mean()]))


@pytest.mark.parametrize("branching", TREES)
def test_a_plan_without_time_is_its_start_with_its_cost(
    driver: Any, inputs: Tensors, make_request: Any, branching: tuple[float, ...]
) -> None:
    mean = torch.zeros(HORIZON, 7)
    mean[:, :3] = 0.01
    given = context_of(inputs) | {"goal_latents": inputs["goal_latents"][:1]}
    options = SMALL | {"num_iterations": 3, "tree_branching": branching}
    (late,) = driver.run(make_request("plan", given | {"initial_mean": mean}, options, deadline_ns=0))
    assert late.flags == ["deadline", "not_searched"]
    torch.testing.assert_close(late.emitted["plan_actions"], [mean])
    rolled = driver.run_one("rollout", given | {"actions": mean[None]}, output="goal_distance")
    torch.testing.assert_close(late.emitted["plan_cost"][0], rolled.emitted["goal_distance"][-1].repeat(2))
    assert driver.num_pages_held == 0


def test_plans_with_other_options_share_steps_without_changing(driver: Any, inputs: Tensors, make_request: Any) -> None:
    given = context_of(inputs) | {"goal_latents": inputs["goal_latents"][:1]}
    base = SMALL | {"num_iterations": 3, "num_elites": 4, "max_displacement": 1.0}  # far, so that costs lie apart
    chosen: list[dict[str, Any]] = [
        {}, {"tree_branching": (2.0, 3.0, 2.0)}, {"planner": "mppi", "cost": "l2"}, {"keep_elites": True},
        {"include_mean": True, "rollout_horizon": 1}, {"context_window": 2, "window_stride": 1},
    ]  # fmt: skip
    together = driver.run(*(make_request("plan", given, base | options) for options in chosen))
    alone = [driver.run_one("plan", given, **base | options) for options in chosen]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.emitted["plan_actions"], other.emitted["plan_actions"], rtol=0, atol=1e-4)
    plans = [one.emitted["plan_actions"][-1] for one in alone]
    assert all(not torch.equal(plans[0][:1], plan[:1]) for plan in plans[1:])
