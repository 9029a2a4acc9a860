"""The baseline of the benchmarks is the published algorithm: it gives the public planner's actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.native import planner
from benchmarks.native.cached import CachedLoop
from benchmarks.native.predictor import NativePredictor
from world_models.vjepa2.checkpoint import load_networks
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config
from world_models.vjepa2.predictor import ActionPredictor

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = VJepa2Config(
    "tiny",
    EncoderConfig(dim=64, depth=2, num_heads=2, mlp_dim=256, image_size=64),
    PredictorConfig(latent_dim=64, dim=64, depth=2, num_heads=2, mlp_dim=256, grid_rows=4, grid_columns=4),
)


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_ac_cem.safetensors")


@pytest.fixture(scope="module")
def predictor() -> ActionPredictor:
    return load_networks(TINY, GOLDEN / "vjepa2_ac_tiny.pt").predictor


def settings_of(case: str) -> tuple[planner.NativeSettings, int]:
    all_settings = json.loads((GOLDEN / "vjepa2_ac_cem.json").read_text())
    given: dict[str, Any] = all_settings[case]
    settings = planner.NativeSettings(
        given["rollout"], given["samples"], given["topk"], given["cem_steps"], given["momentum_mean"],
        given["momentum_std"], maxnorm=given["maxnorm"],
        axis={int(dimension): value for dimension, value in given["axis"].items()},
        close_gripper=given.get("close_gripper"),
    )  # fmt: skip
    return settings, all_settings["seed"]


@pytest.mark.parametrize("case", ["h1", "h3", "h2_pinned"])
@pytest.mark.parametrize("system", ["native", "cached"])
def test_plan_equals_the_public_planner(
    golden: dict[str, torch.Tensor], predictor: ActionPredictor, case: str, system: str
) -> None:
    settings, seed = settings_of(case)
    context, goal = (golden[name].reshape(16, 64) for name in ("context_latents", "goal_latents"))
    pose = golden["pose"].reshape(7)
    if system == "native":
        imagine = planner.native_imagination(NativePredictor.like(predictor), context, pose)
    else:
        imagine = CachedLoop(predictor, settings.samples, settings.rollout).imagination(context, pose)
    plan = planner.plan(imagine, goal, settings, seed)
    expected = golden[f"plan_{case}"].reshape(plan.shape)
    torch.testing.assert_close(plan, expected, rtol=0.0, atol=1e-4)
