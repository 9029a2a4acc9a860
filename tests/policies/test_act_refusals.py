"""ACT folders that cannot be served are refused with a sentence that says what to change."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from published_policies import Published, Tensors, call, published, run

from mstar_rt.errors import CheckpointError, ConfigError, FailedPrecondition
from mstar_rt.model import NodeResources, VectorSpec
from policies.act.model import declare
from policies.act.nodes import build_nodes

CONFIG, BEFORE, AFTER = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
ACT = NodeResources(nodes=frozenset({"act"}))
Files = dict[str, Any]


@pytest.fixture(scope="module")
def policy() -> Published:
    return published("act_tiny", "two_cameras")


@pytest.fixture(scope="module")
def folder(policy: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy.write(tmp_path_factory.mktemp("act") / "two_cameras")


def copied(policy: Published, folder: Path, change: Callable[[Files], Any]) -> Path:
    """The JSON files alone, changed: what the declaration reads."""
    files = json.loads(json.dumps(policy.files))
    change(files)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def small(policy: Published) -> Published:
    """Without what the cameras are seen with, which the node `act` does not need."""
    weights = {key: tensor for key, tensor in policy.weights.items() if not key.startswith("model.backbone.")}
    return dataclasses.replace(policy, weights=weights)


def normaliser(files: Files, name: str = BEFORE) -> Files:
    steps: list[Files] = files[name]["steps"]
    return next(step for step in steps if "normalizer" in step["registry_name"])


def test_the_policy_is_declared_as_its_files_have_it(folder: Path) -> None:
    model = declare("arm", str(folder), {})
    assert model.policy is not None
    assert [(one.name, one.height, one.width, one.may_be_masked) for one in model.policy.cameras] == [
        ("top", 64, 96, False), ("wrist", 64, 96, False),
    ]  # fmt: skip
    assert (model.policy.state, model.policy.action) == (VectorSpec(5), VectorSpec(4))
    assert (model.policy.action_horizon, model.policy.num_observations, model.facts["replan_every"]) == (6, 1, 4)
    assert (model.policy.normalizations, model.policy.chunking, model.policy.takes_instruction) == (
        ("checkpoint",),
        (),
        False,
    )
    assert declare("arm", str(folder / "model.safetensors"), {}).policy == model.policy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files[CONFIG].update(type="pi0"), "a policy of type 'pi0', expected 'act'"),
        (lambda files: files[CONFIG].update(vision_backbone="resnet50"), "vision_backbone 'resnet50', which is not served"),
        (lambda files: files[CONFIG].update(feedforward_activation="glu"), "feedforward_activation 'glu', which is not"),
        (lambda files: files[CONFIG].update(replace_final_stride_with_dilation=True), "which resnet18 cannot have"),
        (lambda files: files[CONFIG].update(n_obs_steps=2), "has n_obs_steps 2"),
        (lambda files: files[CONFIG].update(use_peft=True), "use_peft true"),
        (lambda files: files[CONFIG].update(n_heads=5), "not a multiple of its 5 heads"),
        (lambda files: files[CONFIG].update(dim_model="32"), "'dim_model' is '32', expected a whole number"),
        (lambda files: files[CONFIG].update(n_action_steps=7), "n_action_steps 7 .* is over its chunk_size 6"),
        (lambda files: files[CONFIG].pop("input_features"), "has no input_features"),
        (
            lambda files: files[CONFIG]["input_features"].update({"observation.environment_state": {"type": "ENV", "shape": [3]}}),
            "reads 'observation.environment_state' of type ENV, which no control session gives",
        ),
        (
            lambda files: files[CONFIG]["input_features"]["observation.images.top"].update(shape=[64, 96, 3]),
            r"camera 'observation.images.top' has shape \[64, 96, 3\], expected \[3, height, width\]",
        ),
        (lambda files: files[CONFIG]["normalization_mapping"].update(STATE="RANK"), "STATE 'RANK', "),
        (lambda files: files[BEFORE]["steps"].append({"registry_name": "crop"}), "step 'crop' is not served"),
        (lambda files: files[BEFORE]["steps"][0]["config"].update(rename_map={"a": "b"}), "renames a"),
        (lambda files: normaliser(files)["config"]["features"].pop("observation.state"), "does not list 'observation.state'"),
        (lambda files: normaliser(files).update(state_file="../x.safetensors"), "the name of a file beside it"),
        (lambda files: files.pop(AFTER), "cannot read .*policy_postprocessor.json"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_served_is_refused(
    policy: Published, tmp_path: Path, change: Callable[[Files], Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declare("arm", str(copied(policy, tmp_path, change)), {})


def test_there_are_no_options_and_there_must_be_a_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no options, but got chunk_size"):
        declare("arm", str(folder), {"chunk_size": 3})
    with pytest.raises(ConfigError, match="has no checkpoint"):
        declare("arm", "", {})
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        declare("arm", str(tmp_path), {})


def without(key: str) -> Callable[[Tensors, Files], Any]:
    return lambda weights, files: weights.pop(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model.action_head.bias"), "lacks 'action_head.bias'"),
        (lambda weights, files: weights.update({"model.extra": torch.zeros(1)}), "has unknown keys 'extra'"),
        (lambda weights, files: weights.update({"other.extra": torch.zeros(1)}), r"unknown keys 'other\.extra'"),
        (
            lambda weights, files: weights.update({"model.decoder_pos_embed.weight": torch.zeros(7, 32)}),
            r"'decoder_pos_embed\.weight' has shape \[7, 32\], expected \[6, 32\]",
        ),
        (
            lambda weights, files: files[CONFIG].update(use_vae=False),
            "has unknown keys 'vae_encoder",
        ),
        (
            lambda weights, files: weights.update({"normalize_inputs.buffer_observation_state.mean": torch.zeros(5)}),
            "has statistics .* and so have the processor files beside it",
        ),
        (lambda weights, files: normaliser(files).pop("state_file"), "lacks the statistic 'observation.images.top.mean'"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(
    policy: Published, tmp_path: Path, change: Callable[[Tensors, Files], Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_nodes(declare("arm", str(small(policy).write(tmp_path, change)), {}), ACT)


def test_what_the_cameras_are_seen_with_is_held_against_the_file_too(policy: Published, tmp_path: Path) -> None:
    lacking = policy.write(tmp_path, without("model.backbone.layer4.1.bn2.running_var"))
    with pytest.raises(CheckpointError, match=r"lacks 'backbone\.layer4\.1\.bn2\.running_var'"):
        build_nodes(declare("arm", str(lacking), {}), NodeResources())


def test_the_part_for_training_may_be_left_out(policy: Published, tmp_path: Path) -> None:
    def strip(weights: Tensors, files: Files) -> None:
        for key in [key for key in weights if key.startswith("model.vae_encoder")]:
            del weights[key]

    assert set(build_nodes(declare("arm", str(small(policy).write(tmp_path, strip)), {}), ACT)) == {"act"}


@pytest.mark.parametrize(
    ("value", "message"),
    [(torch.tensor([0.1, torch.inf, 0, 0, 0]), "NaN or infinity"), (torch.ones(4), r"shape \[4\]")],
)
def test_statistics_that_do_not_fit_are_refused(
    policy: Published, tmp_path: Path, value: torch.Tensor, message: str
) -> None:
    old = small(policy).write_old(tmp_path)
    weights = load_file(old / "model.safetensors")
    save_file({**weights, "normalize_inputs.buffer_observation_state.std": value}, old / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        build_nodes(declare("arm", str(old), {}), ACT)


def test_actions_that_are_not_finite_reach_nobody(policy: Published, tmp_path: Path) -> None:
    def break_it(weights: Tensors, files: Files) -> None:
        weights["model.action_head.weight"] = torch.full_like(weights["model.action_head.weight"], 3e38)

    code = build_nodes(declare("arm", str(small(policy).write(tmp_path, break_it)), {}), ACT)
    features = {f"features_{camera}": torch.ones(6, 32) for camera in ("top", "wrist")}
    with pytest.raises(FailedPrecondition, match="the policy gives NaN or infinity"):
        run(code["act"], [call("act", {"state": torch.zeros(5), **features})])
