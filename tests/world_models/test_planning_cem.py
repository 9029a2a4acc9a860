"""The pieces of the cross-entropy method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mstar_rt.nn.norms import normalise_latents
from world_models.planning import cem, cost
from world_models.planning.pose import canonical_pose, translate


@pytest.mark.parametrize("name", ["h1", "h3", "h2_pinned"])
def test_plain_loop_gives_the_published_actions(golden_cem: Any, tiny: Any, name: str) -> None:
    """Dense forwards over all frames, as the published planner runs them: the same noise, the same actions."""
    tensors, all_settings = golden_cem
    chosen = all_settings[name]
    settings = cem.CemSettings(
        num_samples=chosen["samples"], num_elites=chosen["topk"], max_norm=chosen["maxnorm"],
        momentum_mean=chosen["momentum_mean"], momentum_std=chosen["momentum_std"],
        pins={int(dimension): value for dimension, value in chosen["axis"].items()},
        close_gripper=chosen.get("close_gripper"),
    )  # fmt: skip
    gaussian, rng_state = cem.initial_gaussian(chosen["rollout"], settings), cem.seeded_rng_state(all_settings["seed"])
    with torch.no_grad():
        for _ in range(chosen["cem_steps"]):
            noise, rng_state = cem.draw_noise(rng_state, chosen["samples"], chosen["rollout"])
            actions = cem.candidates(gaussian, noise, settings)
            latents = tensors["context_latents"].expand(len(actions), -1, -1, -1)
            states = canonical_pose(tensors["pose"]).expand(len(actions), -1, -1)
            for step in range(chosen["rollout"]):
                raw = tiny.predictor(latents, actions[:, : step + 1], states)[:, -1:]
                latents = torch.cat([latents, normalise_latents(raw)], dim=1)
                states = torch.cat([states, translate(states[:, -1:], actions[:, step : step + 1])], dim=1)
            costs = cost.distance(latents[:, -1], tensors["goal_latents"][0, 0], "l1")
            elites = actions[cem.elites_of(costs, settings)]
            gaussian = cem.blended(gaussian, cem.spread_of(elites), settings)
    torch.testing.assert_close(cem.finished_plan(gaussian.mean), tensors[f"plan_{name}"], rtol=0, atol=1e-4)


def test_noise_continues_where_its_state_says() -> None:
    """The state is all there is: draws can stop, move to another process, and go on."""
    state = cem.seeded_rng_state(7)
    assert state.dtype == torch.uint8
    first, middle = cem.draw_noise(state, 5, 2)
    second, _ = cem.draw_noise(middle, 5, 1)
    torch.manual_seed(7)
    expected = [torch.randn(5, 4) for _ in range(3)]
    assert torch.equal(torch.cat([first, second]), torch.stack(expected))


def test_candidates_stay_in_bounds_and_keep_their_pins() -> None:
    settings = cem.CemSettings(max_norm=0.05, pins={1: 0.01, 3: -0.9}, close_gripper=2)
    noise, _ = cem.draw_noise(cem.seeded_rng_state(0), 200, 3)
    actions = cem.candidates(cem.initial_gaussian(3, settings), noise * 3, settings)
    assert actions.shape == (200, 3, 7)
    assert actions[..., :3].abs().max() == 0.05
    assert (actions[..., 1] == 0.01).all()
    assert not actions[..., 3:6].any()
    assert (actions[:, :2, 6] == -0.9).all()
    assert (actions[:, 2, 6] == 1.0).all()
    free = cem.candidates(cem.initial_gaussian(3, cem.CemSettings()), noise, cem.CemSettings())
    assert free[..., 6].abs().max() == 0.75


def test_refit_blends_the_elites_with_what_was() -> None:
    settings = cem.CemSettings(num_elites=2, momentum_mean=0.25, momentum_std=0.5, momentum_mean_gripper=0.0)
    actions = cem.with_rotation(torch.tensor([[[1.0, 2, 3, 4]], [[3.0, 2, 1, 0]], [[9.0, 9, 9, 9]]]))
    before = cem.Gaussian(torch.ones(1, 4), torch.full((1, 4), 2.0))
    elites = cem.elites_of(torch.tensor([0.2, 0.1, 5.0]), settings)
    after = cem.blended(before, cem.spread_of(actions[elites]), settings)
    assert elites.tolist() == [1, 0]
    torch.testing.assert_close(after.mean, torch.tensor([[0.75 * 2 + 0.25, 0.75 * 2 + 0.25, 0.75 * 2 + 0.25, 2.0]]))
    root = 2**0.5
    expected = torch.tensor([[root / 2 + 1, 1.0, root / 2 + 1, 0.85 * 2 * root + 0.15 * 2]])
    torch.testing.assert_close(after.std, expected)


def test_small_gripper_moves_are_none() -> None:
    plan = cem.finished_plan(torch.tensor([[0.01, 0.02, 0.03, 0.24], [0.0, 0.0, 0.0, -0.25]]))
    assert plan[:, 6].tolist() == [0.0, -0.25]
    assert plan[0, :3].tolist() == pytest.approx([0.01, 0.02, 0.03])


def test_means_of_other_horizons_are_cut_or_continued_at_rest() -> None:
    mean = torch.arange(8.0).reshape(2, 4)
    assert cem.fitted_to(mean, 1).tolist() == [[0, 1, 2, 3]]
    assert cem.fitted_to(mean, 3).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 0, 0, 0]]
    assert cem.shifted(mean).tolist() == [[4, 5, 6, 7], [0, 0, 0, 0]]
