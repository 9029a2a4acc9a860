"""Diffusion Policy folders that cannot be served are refused with a sentence that says what to change."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from published_policies import Published, Tensors, call, published, run

from mstar_rt.errors import CheckpointError, ConfigError, FailedPrecondition
from mstar_rt.model import NodeResources
from policies.diffusion.model import declare
from policies.diffusion.nodes import build_nodes

CONFIG = "config.json"
DENOISE, SEE = (NodeResources(nodes=frozenset({node})) for node in ("denoise", "see"))
Files = dict[str, Any]
TOP = "observation.images.top"


@pytest.fixture(scope="module")
def policy() -> Published:
    return published("diffusion_tiny", "ddpm")


def small(policy: Published) -> Published:
    """Without what the cameras are seen with, which only the node `see` needs."""
    weights = {key: tensor for key, tensor in policy.weights.items() if not key.startswith("diffusion.rgb_encoder.")}
    return dataclasses.replace(policy, weights=weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.update(type="act"), "a policy of type 'act', expected 'diffusion'"),
        (lambda config: config.update(vision_backbone="resnet34"), "vision_backbone 'resnet34', which is not served"),
        (lambda config: config["input_features"].pop("observation.state"), "reads no observation.state"),
        (lambda config: config["input_features"][TOP].update(shape=[3, 80, 104]), "cameras of several sizes"),
        (lambda config: config.update(horizon=6), "horizon 6 .* is not a multiple of 4"),
        (lambda config: config.update(n_action_steps=8), "n_action_steps 8 .* is over the 7 actions"),
        (lambda config: config.update(crop_shape=[80, 96]), r"cuts \[80, 96\] pixels out of images of \[72, 104\]"),
        (lambda config: config.update(crop_shape=[80]), "'crop_shape' has 1 numbers, expected 2"),
        (lambda config: config.update(resize_shape=[64, 64], crop_ratio=1.5), "'crop_ratio' is 1.5, expected"),
        (lambda config: config.update(down_dims=[20, 32]), "are not multiples of 8 and 8 groups"),
        (lambda config: config.update(noise_scheduler_type="EDM"), "noise_scheduler_type 'EDM', which is not served"),
        (lambda config: config.update(beta_schedule="sigmoid"), "beta_schedule 'sigmoid', which is not served"),
        (lambda config: config.update(prediction_type="v_prediction"), "prediction_type 'v_prediction', which is not"),
        (lambda config: config.update(num_inference_steps=21), "num_inference_steps 21 is over num_train_timesteps 20"),
        (lambda config: config.update(clip_sample="yes"), "'clip_sample' is 'yes', expected true or false"),
        (lambda config: config.update(beta_end=None), "'beta_end' is None, expected a number"),
        (lambda config: config.update(diffusion_step_embed_dim=15), "is 15, expected an even number"),
        (lambda config: config.update(kernel_size=4), "'kernel_size' is 4, expected an odd number"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_served_is_refused(
    policy: Published, tmp_path: Path, change: Callable[[Files], Any], message: str
) -> None:
    config = json.loads(json.dumps(policy.files[CONFIG]))
    change(config)
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        declare("arm", str(tmp_path), {})


def without(key: str) -> Callable[[Tensors, Files], Any]:
    return lambda weights, files: weights.pop(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("diffusion.unet.mid_modules.1.conv2.block.0.bias"), r"lacks 'mid_modules\.1\.conv2\.block\.0\.bias'"),
        (lambda weights, files: weights.update({"diffusion.unet.extra": torch.zeros(1)}), "unknown keys 'extra'"),
        (lambda weights, files: weights.update({"diffusion.other.extra": torch.zeros(1)}), r"keys 'other\.extra'"),
        (
            lambda weights, files: weights.update({"diffusion.unet.final_conv.1.bias": torch.zeros(3)}),
            r"'final_conv\.1\.bias' has shape \[3\], expected \[4\]",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(
    policy: Published, tmp_path: Path, change: Callable[[Tensors, Files], Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_nodes(declare("arm", str(small(policy).write(tmp_path, change)), {}), DENOISE)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("ddpm", without("diffusion.rgb_encoder.backbone.7.0.downsample.0.weight"), r"lacks 'backbone\.7\.0\.downsample\.0"),
        ("ddim", without("diffusion.rgb_encoder.1.out.bias"), r"rgb_encoder\.1 lacks 'out\.bias'"),
        (
            "ddim",
            lambda weights, files: weights.update({"diffusion.rgb_encoder.2.out.bias": torch.zeros(12)}),
            r"has unknown keys '2\.out\.bias'",
        ),
    ],
)  # fmt: skip
def test_what_cameras_are_seen_with_is_held_against_the_file(
    tmp_path: Path, case: str, change: Callable[[Tensors, Files], Any], message: str
) -> None:
    folder = published("diffusion_tiny", case).write(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        build_nodes(declare("arm", str(folder), {}), SEE)


def test_actions_that_are_not_finite_reach_nobody(policy: Published, tmp_path: Path) -> None:
    code = build_nodes(
        declare("arm", str(small(policy).write(tmp_path)), {}), NodeResources(nodes=frozenset({"finish"}))
    )
    with pytest.raises(FailedPrecondition, match="the policy gives NaN or infinity"):
        run(code["finish"], [call("finish", {"denoised": torch.full((8, 4), torch.nan), "times": torch.zeros(3)})])
