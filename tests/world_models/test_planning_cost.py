"""Distances to goals, against their formulas written out."""

from __future__ import annotations

import pytest
import torch

from world_models.planning import cost

GENERATOR = torch.Generator().manual_seed(0)
LATENTS = torch.randn(7, 5, 8, generator=GENERATOR)
GOALS = torch.randn(3, 5, 8, generator=GENERATOR)
ONES = torch.ones(3)


def by_hand(latent: torch.Tensor, goal: torch.Tensor, kind: str) -> float:
    difference = (latent - goal).double()
    if kind == "l1":
        return float(difference.abs().mean())
    if kind == "l2":
        return float(torch.stack([row.norm() / len(row) ** 0.5 for row in difference]).mean())
    pairs = zip(latent.double(), goal.double(), strict=True)
    return 1.0 - float(torch.stack([row @ other / row.norm() / other.norm() for row, other in pairs]).mean())


@pytest.mark.parametrize("kind", ["l1", "l2", "cosine"])
def test_distances_are_those_of_their_formulas(kind: str) -> None:
    got = cost.goal_distance(LATENTS, GOALS[:1], ONES[:1], cost.LAST, 2, kind)
    assert got.shape == (7,)
    assert got.tolist() == pytest.approx([by_hand(latent, GOALS[0], kind) for latent in LATENTS], rel=1e-5)


@pytest.mark.parametrize("kind", ["l1", "l2", "cosine"])
def test_parts_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cost.distance(LATENTS, GOALS[0], kind)
    monkeypatch.setattr(cost, "PART_VALUES", 90)
    assert torch.equal(cost.distance(LATENTS, GOALS[0], kind), whole)


def test_cosine_of_layer_normed_latents_is_half_their_mean_squared_difference() -> None:
    latents, goal = (torch.nn.functional.layer_norm(part, (8,)) for part in (LATENTS, GOALS[0]))
    squared = (latents - goal).square().mean(dim=(-2, -1))
    torch.testing.assert_close(cost.distance(latents, goal, "cosine"), squared / 2, rtol=0, atol=1e-4)


def test_each_step_has_its_goal_and_weight() -> None:
    weights = torch.tensor([1.0, 0.5, 2.0])
    for step in range(3):
        got = cost.goal_distance(LATENTS, GOALS, weights, cost.PER_STEP, step, "l1")
        torch.testing.assert_close(got, weights[step] * cost.distance(LATENTS, GOALS[step], "l1"))


def test_the_nearest_goal_counts_by_weight_times_distance() -> None:
    each = torch.stack([cost.distance(LATENTS, goal, "l1") for goal in GOALS])
    assert torch.equal(cost.goal_distance(LATENTS, GOALS, ONES, cost.NEAREST, 0, "l1"), each.amin(dim=0))
    weights = torch.tensor([10.0, 1.0, 10.0])
    assert torch.equal(cost.goal_distance(LATENTS, GOALS, weights, cost.NEAREST, 0, "l1"), each[1])


def test_a_plan_reads_the_last_distance_or_all() -> None:
    asked = {mode: [cost.has_distance(mode, step, 3) for step in range(3)] for mode in range(3)}
    assert asked == {
        cost.LAST: [False, False, True],
        cost.NEAREST: [False, False, True],
        cost.PER_STEP: [True, True, True],
    }


def test_sums_repeat_what_candidates_share_and_skip_what_was_not_asked_for() -> None:
    nothing = torch.zeros(0)
    last = torch.arange(4.0)
    assert torch.equal(cost.summed([nothing, nothing, last]), last)
    assert cost.summed([torch.tensor([10.0, 20.0]), last]).tolist() == [10, 11, 22, 23]
