"""The search as a walk: what each option changes, in a world where the best plan is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.errors import GraphError, InvalidArgument
from mstar_rt.model.declared_specs import check_param
from tests.world_models.search_rig import search
from world_models.planning import cem
from world_models.planning.options import PlannerDefaults, plan_params
from world_models.planning.tree import num_rows, rows_at

GOAL = torch.tensor([[0.06, -0.05, 0.02, 0.0]])
FAR = torch.tensor([[1.0, -1.0, 1.0, 0.0]])


def published_plan(goal: torch.Tensor, horizon: int, samples: int, topk: int, steps: int, seed: int) -> torch.Tensor:
    """The public planner, written out for this world: nothing kept, nothing shared, the mean of the last fit."""
    torch.manual_seed(seed)
    mean, std = torch.zeros(horizon, 4), torch.tensor([0.05, 0.05, 0.05, 1.0]).repeat(horizon, 1)
    for _ in range(steps):
        place, drawn_all = torch.zeros(samples, 4), []
        for h in range(horizon):
            drawn = torch.randn(samples, 4) * std[h] + mean[h]
            drawn[:, :3] = drawn[:, :3].clip(-0.05, 0.05)
            drawn[:, 3] = drawn[:, 3].clip(-0.75, 0.75)
            place = place + drawn
            drawn_all.append(drawn)
        best = (place - goal).abs().mean(dim=-1).topk(topk, largest=False).indices
        elites = torch.stack(drawn_all, dim=1)[best]
        mean = elites.mean(dim=0) * 0.85 + mean * 0.15
        std = elites.std(dim=0) * 0.85 + std * 0.15
    gripper = torch.where(mean[:, 3:].abs() < 0.25, 0.0, mean[:, 3:])
    return torch.cat([mean[:, :3], torch.zeros(horizon, 3), gripper], dim=-1)


@pytest.mark.parametrize(("horizon", "steps"), [(1, 1), (2, 3), (4, 5)])
def test_defaults_give_the_published_actions_bit_for_bit(horizon: int, steps: int) -> None:
    searched = search(GOAL, rollout_horizon=horizon, num_iterations=steps, seed=3)
    assert torch.equal(searched.actions, published_plan(GOAL[0], horizon, 60, 6, steps, seed=3))
    assert searched.world.num_rows == [60] * horizon * steps


@pytest.mark.parametrize(
    "options",
    [
        {"planner": "mppi"}, {"cost": "l2"}, {"keep_elites": True}, {"include_mean": True},
        {"tree_branching": (6.0, 10.0)}, {"momentum_mean": 0.5}, {"momentum_std": 0.5}, {"momentum_std_gripper": 0.5},
        {"momentum_mean_gripper": 0.5}, {"max_displacement": 0.04}, {"seed": 1}, {"convergence_tolerance": 0.04},
        {"pinned_dims": (1.0,), "pinned_values": (0.0,)}, {"close_gripper_step": 1}, {"num_elites": 7},
        {"num_samples": 61}, {"num_iterations": 4}, {"rollout_horizon": 3},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_every_option_changes_the_plan(options: dict[str, Any]) -> None:
    plain, changed = search(GOAL, rollout_horizon=2), search(GOAL, **{"rollout_horizon": 2, **options})
    assert plain.actions.shape != changed.actions.shape or not torch.equal(plain.actions, changed.actions)


def test_kept_elites_stay_candidates_and_are_not_imagined_again() -> None:
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 8, "num_samples": 24, "num_elites": 4}
    kept, forgotten = search(GOAL, keep_elites=True, **options), search(GOAL, **options)
    assert kept.world.num_rows == forgotten.world.num_rows == [24] * 16
    best = torch.stack(kept.emitted["plan_cost"])
    assert (best.diff(dim=0) <= 0).all(), "what is kept can only be beaten"
    assert (torch.stack(forgotten.emitted["plan_cost"]).diff(dim=0) > 0).any()
    torch.testing.assert_close(kept.emitted["plan_cost"][0], forgotten.emitted["plan_cost"][0])


def test_the_mean_is_a_candidate() -> None:
    mean = torch.zeros(2, 7)
    mean[:, 0] = 0.03
    goal = torch.tensor([[0.06, 0.0, 0.0, 0.0]])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 1, "tensors": {"initial_mean": mean}}
    assert float(search(goal, include_mean=True, **options).emitted["plan_cost"][0][0]) == pytest.approx(0.0, abs=1e-7)
    assert float(search(goal, **options).emitted["plan_cost"][0][0]) > 1e-3
    drawn, with_mean = search(goal, **options).world.actions[0], search(goal, include_mean=True, **options).world
    assert torch.equal(drawn[1:], with_mean.actions[0][1:]), "the others are drawn as before"
    assert torch.equal(with_mean.actions[0][0], mean)


def test_a_tree_imagines_common_first_steps_once() -> None:
    branching = (3.0, 2.0, 10.0)
    searched = search(GOAL, rollout_horizon=3, num_iterations=1, tree_branching=branching)
    (actions,) = searched.world.actions
    assert searched.world.num_rows == [3, 6, 60]
    assert [len(actions[:, : step + 1].unique(dim=0)) for step in range(3)] == [3, 6, 60]
    for row, first in enumerate(range(0, 60, 20)):
        assert (actions[first : first + 20, 0] == actions[first, 0]).all(), f"branch {row} is not consecutive"
    flat = search(GOAL, rollout_horizon=3, num_iterations=1, tree_branching=(60.0, 1.0, 1.0))
    assert torch.equal(flat.actions, search(GOAL, rollout_horizon=3, num_iterations=1).actions)


def test_a_tree_holds_the_path_of_the_mean() -> None:
    mean = torch.zeros(2, 7)
    mean[:, 1] = torch.tensor([0.01, 0.02])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 1, "tensors": {"initial_mean": mean}}
    (actions,) = search(GOAL, tree_branching=(6.0, 10.0), include_mean=True, **options).world.actions
    assert torch.equal(actions[0], mean)
    assert (actions[:10, 0] == mean[0]).all(), "its siblings share the first step"
    assert not (actions[10:, 0] == mean[0]).all(dim=-1).any()


def test_costs_of_a_tree_are_those_of_its_candidates_one_by_one() -> None:
    goals = torch.tensor([[0.02, 0.0, 0.0, 0.0], [0.0, 0.03, 0.0, 0.0]])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 1, "goal_use": "per_step", "num_elites": 60}
    searched = search(goals, tree_branching=(6.0, 10.0), **options)
    (actions,) = searched.world.actions
    places = actions[..., [0, 1, 2, 6]].cumsum(dim=1)
    costs = (places - goals).abs().mean(dim=-1).sum(dim=-1)
    best, mean = searched.emitted["plan_cost"][0]
    torch.testing.assert_close(best, costs.min())
    torch.testing.assert_close(mean, costs.mean())


def test_mppi_weighs_candidates_by_their_cost_and_samples_as_widely_again() -> None:
    options: dict[str, Any] = {"rollout_horizon": 1, "num_iterations": 1, "planner": "mppi", "num_elites": 60}
    warm = search(GOAL, temperature=0.01, momentum_mean=0.0, momentum_mean_gripper=0.0, **options)
    (actions,) = warm.world.actions
    searched = actions[:, 0][:, [0, 1, 2, 6]]
    costs = (searched - GOAL).abs().mean(dim=-1)
    shares = torch.exp(-costs.double() / 0.01)
    mean = (shares[:, None] / shares.sum() * searched).sum(dim=0)
    torch.testing.assert_close(warm.actions[0, :3], mean[:3].float())
    spread = (shares[:, None] / shares.sum() * (searched - mean).square()).sum(dim=0).sqrt()
    torch.testing.assert_close(warm.emitted["elite_std"][0][0], spread.float())
    cold = search(GOAL, temperature=1e-6, momentum_mean=0.0, momentum_mean_gripper=0.0, **options)
    torch.testing.assert_close(cold.actions[0, :3], actions[costs.argmin(), 0, :3])
    wide = search(FAR, planner="mppi", num_iterations=4, rollout_horizon=1).world.actions
    narrow = search(FAR, num_iterations=4, rollout_horizon=1).world.actions
    assert wide[-1][:, 0, 6].std() > 0.5 > narrow[-1][:, 0, 6].std()


def test_mppi_finds_the_goal() -> None:
    goal = torch.tensor([[0.06, -0.05, 0.02, 0.3]])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_samples": 600, "num_elites": 100, "num_iterations": 20}
    searched = search(goal, planner="mppi", temperature=0.005, keep_elites=True, **options)
    assert (searched.end - goal[0])[:3].abs().max() < 0.015


def test_goals_of_each_step_are_a_path() -> None:
    path = torch.tensor([[0.04, 0.0, 0.0, 0.0], [0.04, 0.04, 0.0, 0.0], [0.0, 0.04, 0.0, 0.0]])
    options: dict[str, Any] = {"rollout_horizon": 3, "num_iterations": 30, "num_samples": 400, "num_elites": 20}
    places = search(path, goal_use="per_step", **options).actions[:, :3].cumsum(dim=0)
    torch.testing.assert_close(places, path[:, :3], rtol=0, atol=0.006)
    last_only = search(path, goal_use="per_step", weights=torch.tensor([0.0, 0.0, 1.0]), **options)
    assert torch.equal(last_only.actions, search(path[2:], **options).actions)
    assert last_only.actions[:, :3].cumsum(dim=0)[0, 0] < 0.02, "without a weight the first place does not matter"


def test_the_nearest_of_several_goals_counts() -> None:
    goals = torch.tensor([[0.3, 0.0, 0.0, 0.0], [-0.08, 0.0, 0.0, 0.0]])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 6, "num_samples": 400, "goal_use": "nearest"}
    assert float(search(goals, **options).end[0]) == pytest.approx(-0.08, abs=0.01)
    cheap = search(goals, weights=torch.tensor([0.001, 1.0]), **options)
    assert float(cheap.end[0]) > 0.05, "a goal of small weight is always near"


def test_candidates_stay_within_the_clients_bounds() -> None:
    low = torch.tensor([-0.01, -0.05, 0.02, 0.0, 0.0, 0.0, -1.0])
    high = torch.tensor([0.02, 0.0, 0.04, 0.0, 0.0, 0.0, 1.0])
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 3}
    searched = search(FAR, tensors={"action_low": low, "action_high": high}, **options)
    for actions in searched.world.actions:
        assert (actions >= low).all()
        assert (actions <= high).all()
    first = searched.world.actions[0]
    torch.testing.assert_close(first[..., 2].mean(), torch.tensor(0.03), rtol=0, atol=0.003)
    assert first[..., 6].max() > 0.75, "the client may open the gripper's range"
    one_sided = search(FAR, tensors={"action_high": high}, **options)
    assert one_sided.world.actions[0][..., 0].min() < -0.02
    assert one_sided.world.actions[0][..., 0].max() <= 0.02
    widest = {"action_low": -torch.tensor([0.05] * 3 + [0.0] * 3 + [0.75])}
    assert torch.equal(search(FAR, tensors=widest, **options).actions, search(FAR, **options).actions)


def test_a_warm_start_is_moved_into_the_clients_bounds() -> None:
    warm = torch.full((1, 4), 0.05)
    tensors = {"warm_mean": warm, "action_high": torch.tensor([0.01, 0.05, 0.05, 0.0, 0.0, 0.0, 0.75])}
    searched = search(FAR, rollout_horizon=1, warm_start=True, include_mean=True, tensors=tensors)
    torch.testing.assert_close(searched.world.actions[0][0, 0, :3], torch.tensor([0.01, 0.05, 0.05]))


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({"action_high": [0.06, 0, 0, 0, 0, 0, 0]}, {}, "'action_high' has x 0.06, expected at most 0.05 either way"),
        ({"action_low": [0, 0, 0, 0, 0, 0, -1.5]}, {}, "'action_low' has gripper -1.5, expected at most 1 either way"),
        ({"action_low": [0.03, 0, 0, 0, 0, 0, 0], "action_high": [0.02, 0, 0, 0, 0, 0, 0]}, {}, "bounds of x are 0.03"),
        ({"action_low": [0, 0, 0, 0, 0.1, 0, 0]}, {}, "leaves out a rotation of 0"),
        ({"action_low": [0.01] + [0] * 6}, {"pinned_dims": (0.0,), "pinned_values": (0.0,)}, "pinned to 0, outside"),
        ({"action_high": [0.05] * 3 + [0] * 3 + [0.5]}, {"close_gripper_step": 0}, "closes the gripper to 1, over"),
        ({"action_high": [0.01] + [0.05] * 6, "initial_mean": [[0.02] + [0] * 6]}, {}, "'initial_mean' has x from"),
        (
            {"initial_mean": [[0, 0, 0.04, 0, 0, 0, 0]]},
            {"pinned_dims": (2.0,), "pinned_values": (0.01,)},
            "'initial_mean' has z up to 0.04, which is pinned to 0.01",
        ),
        ({}, {"temperature": 0.1}, "'temperature' is 0.1, but planner is 'cem'"),
        ({}, {"tree_branching": (60.0, 1.0)}, "2 entries, expected one per step: rollout_horizon is 1"),
        ({}, {"tree_branching": (6.0,)}, "makes 6 candidates, and num_samples is 60: give num_samples=6"),
        ({}, {"tree_branching": (7.5,)}, "whole numbers from 1"),
        ({}, {"planner": "random"}, "expected one of cem, mppi"),
        ({}, {"cost": "l3"}, "expected one of l1, l2, cosine"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tensors: dict[str, list[Any]], options: dict[str, Any], message: str
) -> None:
    given = {name: torch.tensor(values, dtype=torch.float32) for name, values in tensors.items()}
    with pytest.raises(InvalidArgument, match=message):
        search(GOAL, rollout_horizon=1, tensors=given, **options)


def test_the_spread_of_the_elites_is_told_and_shrinks() -> None:
    spreads = torch.stack(search(GOAL, rollout_horizon=2, num_iterations=6).emitted["elite_std"])
    assert spreads.shape == (6, 2, 4)
    assert spreads[-1].max() < spreads[0].max() / 3
    everyone = search(GOAL, rollout_horizon=2, num_iterations=1, num_elites=60)
    (actions,) = everyone.world.actions
    torch.testing.assert_close(everyone.emitted["elite_std"][0], actions[..., [0, 1, 2, 6]].std(dim=0))


def test_a_search_that_converged_stops() -> None:
    options: dict[str, Any] = {"rollout_horizon": 1, "num_iterations": 50, "convergence_tolerance": 0.005}
    searched = search(GOAL, **options)
    assert searched.flags == ("converged",)
    assert 2 < searched.num_iterations < 50
    weighted = search(GOAL, planner="mppi", temperature=1e-6, **options)
    assert weighted.flags == ("converged",), "the std of mppi stays, that of the weighted candidates does not"


def test_a_search_stops_before_an_iteration_that_would_end_too_late() -> None:
    """An iteration is 4 nodes at horizon 1, the start is one more."""
    searched = search(GOAL, rollout_horizon=1, num_iterations=9, node_ns=10, deadline_ns=130)
    assert (searched.num_iterations, searched.flags) == (3, ("deadline",))
    whole = search(GOAL, rollout_horizon=1, num_iterations=3)
    assert torch.equal(searched.actions, whole.actions)
    assert whole.flags == ()


@pytest.mark.parametrize("branching", [(), (6.0, 10.0)])
def test_a_budget_that_is_over_before_the_search_is_answered_by_its_start(branching: tuple[float, ...]) -> None:
    options: dict[str, Any] = {"rollout_horizon": 2, "tree_branching": branching, "deadline_ns": 5, "now_ns": 5}
    warm = torch.tensor([[0.01, 0.02, 0.03, 0.5], [0.03, 0.0, 0.0, 0.0]])
    late = search(GOAL, warm_start=True, tensors={"warm_mean": warm}, **options)
    assert late.flags == ("deadline", "not_searched")
    assert late.world.num_rows == [1, 1], "one candidate, so that its cost is known"
    torch.testing.assert_close(late.actions[:, [0, 1, 2, 6]], warm)
    cost = (warm.sum(dim=0) - GOAL[0]).abs().mean()
    torch.testing.assert_close(late.emitted["plan_cost"], [cost.repeat(2)])
    assert not late.emitted["elite_std"][0].any()
    torch.testing.assert_close(late.kept["warm_mean"], torch.stack([warm[1], torch.zeros(4)]))
    cold = search(GOAL, **options)
    assert not cold.actions.any()
    assert math.isclose(float(cold.emitted["plan_cost"][0][0]), float(GOAL.abs().mean()), rel_tol=1e-5)


def test_a_first_iteration_draws_as_many_candidates_as_end_in_time() -> None:
    """The pace of the session's last plan tells: 60 candidates of 2 steps take 40 ns, so 30 take 20."""
    options: dict[str, Any] = {"rollout_horizon": 2, "num_iterations": 3, "node_ns": 10}
    kept = search(GOAL, **options).kept
    assert float(kept["row_ns"]) * 120 == pytest.approx(40), "from the start of sample to the start of refit"
    cut = search(GOAL, tensors={"row_ns": kept["row_ns"]}, deadline_ns=30, **options)
    assert cut.flags == ("fewer_samples", "deadline")
    assert cut.world.num_rows == [30, 30]
    whole = search(GOAL, **options)
    assert torch.equal(cut.world.actions[0], whole.world.actions[0][:30]), "the first of those it would have drawn"
    least = search(GOAL, tensors={"row_ns": kept["row_ns"]}, deadline_ns=12, **options)
    assert least.world.num_rows == [6, 6], "the elites at least"
    enough = search(GOAL, tensors={"row_ns": kept["row_ns"]}, deadline_ns=1000, **options)
    assert enough.flags == ()
    assert torch.equal(enough.actions, whole.actions)


def test_after_fewer_candidates_the_next_iteration_is_expected_to_take_longer() -> None:
    row_ns = torch.tensor(0.5)
    options: dict[str, Any] = {"rollout_horizon": 1, "num_iterations": 2, "node_ns": 10, "tensors": {"row_ns": row_ns}}
    cut = search(GOAL, deadline_ns=10 + 20, **options)
    assert cut.world.num_rows == [40]
    assert cut.flags == ("fewer_samples", "deadline")


def test_a_model_may_have_defaults_of_its_own() -> None:
    own = PlannerDefaults(planner="mppi", cost="cosine", keep_elites=True, include_mean=True)
    defaults = {param.name: param.default for param in plan_params(own, 8)}
    assert [defaults[name] for name in ("planner", "cost", "keep_elites", "include_mean")] == [
        "mppi", "cosine", True, True,
    ]  # fmt: skip
    assert defaults["context_window"] == 8
    (planner,) = (param for param in plan_params(PlannerDefaults(planner="mpi"), 8) if param.name == "planner")
    with pytest.raises(GraphError, match="expected one of cem, mppi"):
        check_param(planner, "task")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_candidates_of_a_branch_are_consecutive_and_equal_up_to_it(branching: list[int]) -> None:
    num_samples = math.prod(branching)
    noise, _ = cem.draw_noise(cem.seeded_rng_state(0), num_samples, len(branching), branching)
    for step in range(len(branching)):
        rows = rows_at(step, num_samples, branching)
        assert rows == math.prod(branching[: step + 1])
        groups = noise[: step + 1].transpose(0, 1).reshape(rows, num_samples // rows, -1)
        assert (groups == groups[:, :1]).all()
        assert len(groups[:, 0].unique(dim=0)) == rows
    assert num_rows(len(branching), num_samples, branching) == sum(
        rows_at(step, num_samples, branching) for step in range(len(branching))
    )
    assert num_rows(3, 60, ()) == 180
