"""The offline planner finds the minimum of a known cost and starts from its last plan."""

from __future__ import annotations

import pytest
import torch

from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train.offline_planner import CemSettings, OfflinePlanner

PREDICTOR = ActionPredictor(
    PredictorConfig(latent_dim=32, dim=32, depth=1, num_heads=2, mlp_dim=32, grid_rows=2, grid_columns=2)
)
WANTED = torch.tensor([[[0.03, -0.01], [0.0, 0.02], [-0.04, 0.04]], [[0.01, 0.01], [0.02, -0.02], [0.05, 0.0]]])


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> OfflinePlanner:
    settings = CemSettings(num_samples=128, num_elites=12, num_iterations=8)
    planner = OfflinePlanner(PREDICTOR, settings, 2, seed=0)
    monkeypatch.setattr(
        planner, "_cost", lambda latents, goal, positions, actions: (actions - WANTED[:, None]).abs().sum((2, 3))
    )
    return planner


def test_finds_the_cheapest_actions_of_every_episode(planner: OfflinePlanner) -> None:
    empty = torch.zeros(2, 4, 32)
    torch.testing.assert_close(planner.plan(empty, empty, torch.zeros(2, 2)), WANTED, atol=0.006, rtol=0)


def test_next_plan_starts_from_the_last_one_shifted(planner: OfflinePlanner) -> None:
    empty = torch.zeros(2, 4, 32)
    plan = planner.plan(empty, empty, torch.zeros(2, 2))
    start = planner._start()
    assert torch.equal(start[:, :2], plan[:, 1:])
    assert not start[:, 2].any()


def test_plans_stay_within_the_limit() -> None:
    torch.manual_seed(0)
    planner = OfflinePlanner(PREDICTOR, CemSettings(num_samples=16, num_elites=4), 2, seed=0)
    plan = planner.plan(torch.randn(2, 4, 32), torch.randn(2, 4, 32), torch.zeros(2, 2))
    assert plan.shape == (2, 3, 2)
    assert plan.abs().max() <= 0.05
