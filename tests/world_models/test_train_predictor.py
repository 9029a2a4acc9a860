"""Predictor training: kept keys equal the dense forward, the start is persistence, and stopping changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mstar_rt.nn.norms import normalise_latents
from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train import predictor_training
from world_models.vjepa2.train.imagination import Imagination
from world_models.vjepa2.train.predictor_training import (
    Transitions,
    prediction_losses,
    start_near_identity,
    train_predictor,
)

CONFIG = PredictorConfig(
    latent_dim=32, dim=32, depth=2, num_heads=2, mlp_dim=64, grid_rows=2, grid_columns=2, max_frames=8
)


def _inputs(num_frames: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    latents = normalise_latents(torch.randn(3, num_frames, 4, 32, generator=generator))
    actions = torch.randn(3, num_frames, 7, generator=generator) * 0.03
    states = torch.randn(3, num_frames, 7, generator=generator) * 0.1
    return latents, actions, states


def _transitions() -> Transitions:
    """Latents that turn by one fixed map from frame to frame."""
    generator = torch.Generator().manual_seed(2)
    turn = torch.linalg.matrix_exp(0.05 * torch.randn(32, 32, generator=generator))
    frames = [torch.randn(40, 4, 32, generator=generator)]
    for _ in range(15):
        frames.append(normalise_latents(frames[-1] @ turn))
    latents = torch.stack(frames, 1)
    return Transitions(latents.half(), torch.zeros(40, 15, 7), torch.zeros(40, 16, 7))


@pytest.fixture
def predictor() -> ActionPredictor:
    torch.manual_seed(0)
    predictor = ActionPredictor(CONFIG)
    start_near_identity(predictor)
    for parameter in predictor.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return predictor


def test_steps_with_kept_keys_equal_the_dense_forward(predictor: ActionPredictor) -> None:
    latents, actions, states = _inputs(5)
    dense = normalise_latents(predictor(latents, actions, states))
    imagination = Imagination(predictor, 3)
    for frame in range(5):
        step = imagination.step(latents[:, frame], actions[:, frame], states[:, frame])
        torch.testing.assert_close(step, dense[:, frame], atol=2e-5, rtol=0)


def test_rollout_losses_and_gradients_equal_those_of_recomputation(predictor: ActionPredictor) -> None:
    latents, actions, states = _inputs(5)
    actions, states = actions[:, :4], states[:, :4]
    losses = prediction_losses(predictor, latents, actions, states)
    losses.sum().backward()
    gradients = [p.grad.clone() for p in predictor.parameters() if p.grad is not None]
    predictor.zero_grad()

    known = normalise_latents(predictor(latents[:, :4], actions, states))
    frames, pose = [latents[:, :1]], [states[:, 0]]
    expected = [(known - latents[:, 1:]).abs().mean()]
    for step in range(3):
        context = torch.cat(frames, 1)
        out = normalise_latents(predictor(context, actions[:, : step + 1], torch.stack(pose, 1)))[:, -1:]
        frames.append(out)
        pose.append(pose[-1] + actions[:, step])
        if step:
            expected.append((out - latents[:, step + 1 : step + 2]).abs().mean())
    torch.testing.assert_close(losses, torch.stack(expected), atol=1e-5, rtol=0)
    torch.stack(expected).sum().backward()
    dense = [p.grad for p in predictor.parameters() if p.grad is not None]
    for ours, theirs in zip(gradients, dense, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_start_is_persistence_and_feels_the_action() -> None:
    torch.manual_seed(0)
    predictor = ActionPredictor(CONFIG)
    start_near_identity(predictor)
    latents, actions, states = _inputs(1)
    out = normalise_latents(predictor(latents, actions, states))
    assert (out - latents).abs().mean() < 0.1
    embedded = torch.nn.functional.layer_norm(predictor.action_encoder(torch.tensor([[0.05] + [0.0] * 6])), (32,))
    still = torch.nn.functional.layer_norm(predictor.action_encoder(torch.zeros(1, 7)), (32,))
    assert (embedded - still).abs().mean() > 0.2


def test_training_lowers_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor_training, "_WARM_UP_STEPS", 1)
    transitions = _transitions()
    torch.manual_seed(0)
    untrained = ActionPredictor(CONFIG)
    start_near_identity(untrained)
    trained = train_predictor(CONFIG, transitions, 40, 0, lambda line: None, state_path=tmp_path / "state.safetensors")
    windows = (transitions.latents[:, :5].float(), transitions.actions[:, :4], transitions.states[:, :4])
    with torch.no_grad():
        assert prediction_losses(trained, *windows).sum() < 0.95 * prediction_losses(untrained, *windows).sum()


def test_a_stopped_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(step: int, predictor: ActionPredictor) -> None:
        raise Stopped

    def run(state: str, **options: object) -> ActionPredictor:
        path = tmp_path / state
        return train_predictor(CONFIG, _transitions(), 8, 3, lambda line: None, state_path=path, **options)  # type: ignore[arg-type]

    whole = run("whole.safetensors")
    with pytest.raises(Stopped):
        run("stopped.safetensors", checkpoint=stop, checkpoint_every=5)
    resumed = run("stopped.safetensors")
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
