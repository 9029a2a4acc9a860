"""The baseline computes what the public code computes, and so does the cached loop that serving is held against."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.native.cached import CachedLoop
from benchmarks.native.predictor import NativePredictor
from benchmarks.native.rollout import compute_new_pose, rollout
from mstar_rt.nn.norms import normalise_latents
from world_models.vjepa2.checkpoint import load_networks
from world_models.vjepa2.config import EncoderConfig, PredictorConfig, VJepa2Config
from world_models.vjepa2.predictor import ActionPredictor

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = VJepa2Config(
    "tiny",
    EncoderConfig(dim=64, depth=2, num_heads=2, mlp_dim=256, image_size=64),
    PredictorConfig(latent_dim=64, dim=64, depth=2, num_heads=2, mlp_dim=256, grid_rows=4, grid_columns=4),
)
POSE = torch.tensor([0.1, -0.05, 0.0, 0.0, 0.0, 0.2, 0.5])


@pytest.fixture(scope="module")
def predictor() -> ActionPredictor:
    return load_networks(TINY, GOLDEN / "vjepa2_ac_tiny.pt").predictor


@pytest.fixture(scope="module")
def native(predictor: ActionPredictor) -> NativePredictor:
    return NativePredictor.like(predictor)


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "vjepa2_ac_tiny.io.safetensors")


def some_actions(num_sequences: int, horizon: int) -> torch.Tensor:
    return torch.empty(num_sequences, horizon, 7).uniform_(-0.05, 0.05, generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_native_equals_the_public_predictor(native: NativePredictor, golden: dict[str, torch.Tensor]) -> None:
    out = native(golden["frame_latents_normed"], golden["actions"][:, :2], golden["states"][:, :2])
    torch.testing.assert_close(out, golden["predictor_once"], rtol=0.0, atol=1e-5)


@torch.inference_mode()
def test_native_equals_the_public_rollout(native: NativePredictor, golden: dict[str, torch.Tensor]) -> None:
    frames = golden["frame_latents_normed"]
    for step in range(golden["rollout"].shape[1]):
        so_far = frames.shape[1]
        predicted = native(frames, golden["actions"][:, :so_far], golden["states"][:, :so_far])[:, -1:]
        frames = torch.cat([frames, normalise_latents(predicted)], dim=1)
        torch.testing.assert_close(frames[:, -1], golden["rollout"][:, step], rtol=0.0, atol=1e-4)


@torch.inference_mode()
def test_no_earlier_frame_sees_a_later_one(native: NativePredictor, golden: dict[str, torch.Tensor]) -> None:
    frames = normalise_latents(torch.randn(1, 4, 16, 64, generator=torch.Generator().manual_seed(0)))
    actions, states = golden["actions"][:1, :4], golden["states"][:1, :4]
    before = native(frames, actions, states)
    frames[:, 2] += 1.0
    after = native(frames, actions, states)
    assert (before[:, :2] == after[:, :2]).all()
    assert (before[:, 2:] != after[:, 2:]).any(dim=(0, 2, 3)).all()


def test_strict_about_weights(predictor: ActionPredictor) -> None:
    weights = predictor.state_dict()
    del weights["predictor_norm.bias"]
    with pytest.raises(RuntimeError, match="predictor_norm"):
        NativePredictor(TINY.predictor).load_state_dict(weights, strict=True)


def test_poses_equal_the_public_update() -> None:
    golden = load_file(GOLDEN / "vjepa2_pose_update.safetensors")
    pose, action = (golden[name].reshape(-1, 1, 7) for name in ("pose", "action"))
    new = compute_new_pose(pose, action)
    torch.testing.assert_close(new, golden["new_pose"].reshape(-1, 1, 7).to(new), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("num_sequences", [1, 5])
def test_cached_loop_equals_native(
    predictor: ActionPredictor,
    native: NativePredictor,
    golden: dict[str, torch.Tensor],
    num_sequences: int,
) -> None:
    context, actions = golden["frame_latents_normed"][0, 0], some_actions(num_sequences, 30)
    expected = rollout(native, context, actions, POSE)
    loop = CachedLoop(predictor, num_sequences, 30)
    for _ in range(2):
        got = list(loop.rollout(context, actions, POSE))
        torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=0.0, atol=1e-4)
    assert loop.num_calls == 60


def test_autocast_computes_in_bfloat16(native: NativePredictor, golden: dict[str, torch.Tensor]) -> None:
    context, actions = golden["frame_latents_normed"][0, 0], some_actions(2, 4)
    exact = torch.stack(rollout(native, context, actions, POSE))
    rounded = torch.stack(rollout(native, context, actions, POSE, torch.bfloat16))
    assert rounded.dtype is torch.float32
    assert 1e-4 < float((exact - rounded).abs().mean()) < 0.05


def test_cached_loop_in_bfloat16_is_as_near_as_autocast(
    native: NativePredictor, golden: dict[str, torch.Tensor]
) -> None:
    context, actions = golden["frame_latents_normed"][0, 0], some_actions(2, 6)
    in_bfloat16 = load_networks(TINY, GOLDEN / "vjepa2_ac_tiny.pt", dtype=torch.bfloat16).predictor
    exact = torch.stack(rollout(native, context, actions, POSE))
    autocast = torch.stack(rollout(native, context, actions, POSE, torch.bfloat16))
    cached = torch.stack(list(CachedLoop(in_bfloat16, 2, 6).rollout(context, actions, POSE)))
    errors = [float((latents - exact).abs().mean()) for latents in (autocast, cached)]
    assert errors[1] < 1.5 * errors[0], errors
