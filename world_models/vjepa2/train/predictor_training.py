"""Training of the action-conditioned predictor on the frozen encoder's latents.

Loss as published (arXiv 2506.09985, section 3.2): L1 of teacher-forced predictions plus L1 of an auto-regressive
rollout, both on normalised latents; the rollout here is three steps, the horizon that the planner uses, instead of two.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mstar_rt.nn.norms import normalise_latents
from mstar_rt.nn.training import AveragedTraining, late_decay
from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train.episodes import Episodes
from world_models.vjepa2.train.imagination import Imagination

WINDOW_FRAMES = 8
ROLLOUT_STEPS = 3
_AVERAGE_DECAY = 0.998
_BATCH_SIZE = 32
_PEAK_RATE_OF_MATRICES, _PEAK_RATE_OF_OTHERS = 1.5e-3, 1.0e-3
_WARM_UP_STEPS = 200
_DECAY_SHARE = 0.35


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Latents [N, T, P, D] float16, commanded actions [N, T-1, 7] and measured states [N, T, 7], float32."""

    latents: torch.Tensor
    actions: torch.Tensor
    states: torch.Tensor

    @classmethod
    def of(cls, episodes: Episodes, latents: torch.Tensor) -> Transitions:
        num_episodes, num_frames = episodes.effector.shape[:2]
        return cls(
            latents.unflatten(0, (num_episodes, num_frames)),
            _seven(torch.from_numpy(episodes.actions)),
            _seven(torch.from_numpy(episodes.effector)),
        )


def train_predictor(
    config: PredictorConfig,
    transitions: Transitions,
    num_steps: int,
    seed: int,
    log: Callable[[str], None],
    *,
    state_path: Path,
    checkpoint: Callable[[int, ActionPredictor], None] = lambda step, predictor: None,
    checkpoint_every: int = 1000,
) -> ActionPredictor:
    """Returns the running average of the weights, which is also what `checkpoint` gets on the way.

    A run that finds `state_path` goes on from there. The learning rate is constant until `_DECAY_SHARE` of the steps
    are left, so a run that was stopped before that may be resumed with another `num_steps` and is the same as an
    uninterrupted run with the new number.
    """
    torch.manual_seed(seed)
    training = _training(config)
    if state_path.exists():
        training.load(state_path)
    started = time.monotonic()
    for step in range(training.num_steps_done, num_steps):
        windows = _draw_windows(transitions, np.random.default_rng([seed, 20, step]))
        losses = prediction_losses(training.network, *windows)
        (losses[0] + losses[1:].mean()).backward()
        training.step(late_decay(step, num_steps, _WARM_UP_STEPS, _DECAY_SHARE))
        if step % 100 == 0 or step == num_steps - 1:
            values = " ".join(f"{value:.4f}" for value in losses.tolist())
            log(f"predictor step {step} losses {values} {time.monotonic() - started:.0f} s")
        if (step + 1) % checkpoint_every == 0:
            training.save(state_path)
            checkpoint(step + 1, training.average)
    return training.average.eval()


def _training(config: PredictorConfig) -> AveragedTraining[ActionPredictor]:
    predictor = ActionPredictor(config)
    start_near_identity(predictor)
    named = dict(predictor.named_parameters())
    matrices = {n: p for n, p in named.items() if p.ndim == 2 and n.startswith("predictor_blocks.")}
    others = [p for n, p in named.items() if n not in matrices]
    # Measured here on the same batches: Muon on the blocks' matrices needs half the steps of AdamW alone.
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, weight_decay=0.02, betas=(0.9, 0.98))
    optimisers = ((muon, _PEAK_RATE_OF_MATRICES), (adamw, _PEAK_RATE_OF_OTHERS))
    return AveragedTraining(predictor, optimisers, lambda done: min(_AVERAGE_DECAY, 1 - 1 / done))


def start_near_identity(predictor: ActionPredictor) -> None:
    """Start at the persistence loss, with actions that keep their magnitude.

    The norm of a block makes an embedding without bias blind to the size of its input, and metre-scale actions are
    small: hence biases that are large beside unit-scale patches, and weights that bring 0.05 m up to the same size.
    """
    with torch.no_grad():
        for layer in (predictor.predictor_embed, predictor.predictor_proj):
            nn.init.eye_(layer.weight)
        for encoder, deviation in ((predictor.action_encoder, 15.0), (predictor.state_encoder, 2.0)):
            nn.init.normal_(encoder.weight, std=deviation)
            nn.init.normal_(encoder.bias, std=0.7)


def prediction_losses(
    predictor: ActionPredictor, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor
) -> torch.Tensor:
    """Teacher-forced L1, then the L1 of rollout steps 2..ROLLOUT_STEPS from the first frame.

    Args: latents [B, T, P, D]; actions [B, T-1, 7]; states [B, T-1, 7] measured.
    """
    known = normalise_latents(predictor(latents[:, :-1], actions, states))
    losses = [(known - latents[:, 1:]).abs().mean()]
    imagination = Imagination(predictor, len(latents))
    imagined, state = latents[:, 0], states[:, 0]
    for step in range(ROLLOUT_STEPS):
        imagined = imagination.step(imagined, actions[:, step], state)
        state = state + actions[:, step]
        if step > 0:
            losses.append((imagined - latents[:, step + 1]).abs().mean())
    return torch.stack(losses)


def _draw_windows(
    transitions: Transitions, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_episodes, num_frames = transitions.states.shape[:2]
    which = torch.from_numpy(rng.integers(num_episodes, size=(_BATCH_SIZE, 1)))
    first = torch.from_numpy(rng.integers(num_frames - WINDOW_FRAMES + 1, size=(_BATCH_SIZE, 1)))
    frames = first + torch.arange(WINDOW_FRAMES)
    latents = transitions.latents[which, frames].float()
    return latents, transitions.actions[which, frames[:, :-1]], transitions.states[which, frames[:, :-1]]


def _seven(xy: torch.Tensor) -> torch.Tensor:
    """[..., 2] -> [..., 7]: the dimensions that the rod cannot move are zero."""
    return torch.nn.functional.pad(xy.float(), (0, 5))
