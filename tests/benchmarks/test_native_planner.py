"""The baseline of the benchmarks is the published algorithm: it gives the public planner's actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.native import planner
from world_models.vjepa2.checkpoint import load_networks
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = VJepa2Config(
    "tiny",
    EncoderConfig(dim=64, depth=2, num_heads=2, mlp_dim=256, image_size=64),
    PredictorConfig(latent_dim=64, dim=64, depth=2, num_heads=2, mlp_dim=256, grid_rows=4, grid_columns=4),
)


@pytest.mark.parametrize("case", ["h1", "h3"])
def test_native_plan_equals_the_public_planner(case: str) -> None:
    golden = load_file(GOLDEN / "vjepa2_ac_cem.safetensors")
    all_settings = json.loads((GOLDEN / "vjepa2_ac_cem.json").read_text())
    given = all_settings[case]
    settings = planner.NativeSettings(
        given["rollout"], given["samples"], given["topk"], given["cem_steps"], given["momentum_mean"],
        given["momentum_std"], maxnorm=given["maxnorm"],
    )  # fmt: skip
    predictor = load_networks(TINY, GOLDEN / "vjepa2_ac_tiny.pt").predictor
    context, goal = (golden[name].reshape(16, 64) for name in ("context_latents", "goal_latents"))
    plan = planner.plan(predictor, context, goal, golden["pose"].reshape(7), settings, all_settings["seed"])
    expected = golden[f"plan_{case}"].reshape(plan.shape)
    torch.testing.assert_close(plan, expected, rtol=0.0, atol=1e-4)
