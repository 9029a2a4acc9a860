"""The policy that ships: small, loadable, obedient, and served as it was trained."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from walk_driver import WalkDriver, drive

from mstar_rt.config import load_deployment
from mstar_rt.model.declare import declare_model
from policies.pi05.model import declare
from policies.pi05.train.evaluate import Episodes, LoopSettings, run_policy
from policies.pi05.train.in_process import InProcessPolicy
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.instruction_tasks import TASKS, task_named

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "policies" / "pi05" / "weights"
WEIGHTS = FOLDER / "tabletop_policy.safetensors"


@pytest.fixture(scope="module")
def policy() -> InProcessPolicy:
    return InProcessPolicy.load(FOLDER)


@pytest.fixture(scope="module")
def served() -> WalkDriver:
    return drive(declare("policy", str(WEIGHTS), {}))


def _observation(seed: int) -> dict:
    observation, _ = InstructionEnv("touch").reset(seed=seed)
    return observation


def _tensors(observation: dict, noise: np.ndarray) -> dict[str, torch.Tensor]:
    images = {f"image_{name}": torch.from_numpy(image) for name, image in observation["images"].items()}
    return {**images, "state": torch.from_numpy(observation["state"]), "noise": torch.from_numpy(noise)}


def test_it_is_under_ten_megabytes() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 10_000_000


def test_its_deployment_says_what_it_is() -> None:
    deployment = load_deployment(ROOT / "configs" / "tabletop_policy.yaml")
    declared = declare_model(deployment, deployment.models[0])
    assert declared.policy is not None
    assert [camera.name for camera in declared.policy.cameras] == ["top", "wrist"]
    assert declared.policy.action_horizon == 16
    assert declared.policy.max_prefix_delay == 8
    assert declared.policy.action.units == ("m", "m")


@pytest.mark.parametrize("name", TASKS)
def test_it_is_served_as_it_was_trained(policy: InProcessPolicy, served: WalkDriver, name: str) -> None:
    noise = np.random.default_rng(0).standard_normal((1, 16, 2)).astype(np.float32)
    observation, instruction = _observation(1), task_named(name).instruction
    (expected,) = policy.chunks([observation], [instruction], noise=noise)
    (got,) = served.run_one("act", _tensors(observation, noise[0]), instruction=instruction).emitted["actions"]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_a_given_prefix_is_served_as_it_was_trained(policy: InProcessPolicy, served: WalkDriver) -> None:
    noise = np.random.default_rng(0).standard_normal((1, 16, 2)).astype(np.float32)
    observation, instruction = _observation(2), task_named("push_right").instruction
    (free,) = policy.chunks([observation], [instruction], noise=noise)
    given = free[:4] + np.array([0.0, 0.004], np.float32)
    (expected,) = policy.chunks([observation], [instruction], given=given[None], noise=noise)
    tensors = {**_tensors(observation, noise[0]), "previous_actions": torch.from_numpy(given)}
    answer = served.run_one("act", tensors, instruction=instruction, chunking="prefix", delay=4)
    (got,) = answer.emitted["actions"]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(got[:4].numpy(), given, atol=1e-5)


def test_every_camera_counts(policy: InProcessPolicy) -> None:
    noise = np.zeros((1, 16, 2), np.float32)
    observation = _observation(3)
    instruction = task_named("push_left").instruction
    whole = policy.chunks([observation], [instruction], noise=noise)
    for camera in observation["images"]:
        images = {**observation["images"], camera: np.zeros((64, 64, 3), np.uint8)}
        blind = policy.chunks([{**observation, "images": images}], [instruction], noise=noise)
        assert np.abs(blind - whole).max() > 0.005


@pytest.mark.parametrize("name", TASKS)
def test_it_does_what_it_is_told(policy: InProcessPolicy, name: str) -> None:
    """The success rates over 50 episodes are in the model card; this notices weights and code that no longer fit."""
    result = run_policy(policy, Episodes(task_named(name), range(500, 504)), LoopSettings())
    assert result.num_solved >= 3


def test_given_actions_close_the_seam_that_a_delay_opens(policy: InProcessPolicy) -> None:
    seams = {}
    for chunking in ("none", "prefix"):
        episodes = Episodes(task_named("push_right"), range(500, 504))
        result = run_policy(policy, episodes, LoopSettings(delay=6, chunking=chunking))
        assert result.num_solved >= 3
        seams[chunking] = result.seam_m
    assert seams["prefix"] < 0.7 * seams["none"]
