"""What the study of the planner runs is what is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from world_models.vjepa2.config import preset
from world_models.vjepa2.train.planner_options import CASES, HORIZONS, ManyPlans

SMALL: dict[str, Any] = {"rollout_horizon": 2, "num_samples": 12, "num_elites": 4, "num_iterations": 3}
GENERATOR = torch.Generator().manual_seed(0)
LATENTS = torch.nn.functional.layer_norm(torch.randn(2, 16, 64, generator=GENERATOR), (64,))
GOALS = torch.nn.functional.layer_norm(torch.randn(2, 16, 64, generator=GENERATOR), (64,))
STATES = torch.rand(2, 7, generator=GENERATOR) * torch.tensor([1, 1, 1, 0, 0, 0, 0.0])
CHANGES: list[dict[str, Any]] = [
    {}, {"keep_elites": True, "include_mean": True}, {"tree_branching": (3.0, 4.0)}, {"planner": "mppi"},
    {"cost": "cosine"},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_plans_of_the_study_are_those_of_the_walk(
    tiny: Any, tiny_config: Any, driver: Any, change: dict[str, Any]
) -> None:
    options = {**SMALL, **change, "pinned_dims": (3.0,), "pinned_values": (0.0,)}
    plans = ManyPlans(tiny, tiny_config, options, 2)
    first, second = plans.plan(LATENTS, GOALS, STATES), plans.plan(LATENTS, GOALS, STATES)
    assert not torch.equal(first, second), "the second starts from the first"
    for episode in range(2):
        inputs = {"context_latents": LATENTS[episode : episode + 1], "goal_latents": GOALS[episode : episode + 1]}
        served = driver.run_one("plan", inputs | {"state": STATES[episode]}, seed=episode, **options)
        torch.testing.assert_close(first[episode], served.emitted["plan_actions"][-1], rtol=0, atol=1e-5)


def test_every_case_has_options_that_go_together(tiny: Any) -> None:
    for kind, cases in CASES.items():
        for options in cases.values():
            assert (
                ManyPlans(tiny, preset("tabletop"), {"rollout_horizon": HORIZONS[kind], **options}, 1).num_imagined > 0
            )
