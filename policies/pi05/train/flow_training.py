"""Flow matching with training-time real-time chunking.

Every chunk is learnt at several draws of noise and time over one reading of the images. Of some chunks the first
actions are given as they are, at time 0, and only the rest is learnt: so the policy can be told what the robot will do
while it thinks. Source: arXiv 2410.24164, appendix B (times are drawn toward the noise), and arXiv 2512.05964.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mstar_rt.nn.training import late_decay
from policies.pi05.config import Pi05Config
from policies.pi05.network import Pi05Network
from policies.pi05.train.batches import Batch, Batches
from policies.pi05.train.sampling import sample_actions
from policies.pi05.train.training_state import training_of

_WARM_UP_STEPS = 200
_DECAY_SHARE = 0.3


@dataclass(frozen=True)
class TrainingSettings:
    """`draws`: of noise and time per sample."""

    num_steps: int
    batch_size: int = 48
    draws: int = 3
    log_every: int = 100
    checkpoint_every: int = 500


def train_policy(
    config: Pi05Config,
    batches: Batches,
    settings: TrainingSettings,
    seed: int,
    state_path: Path,
    log: Callable[[str], None],
    checkpoint: Callable[[int, Pi05Network], None],
) -> Pi05Network:
    """Returns the moving average of the weights, which is also what `checkpoint` gets on the way.

    A run that finds `state_path` goes on from there. The learning rate is constant until `_DECAY_SHARE` of the steps
    are left, so a run that was stopped before that may be resumed with another number of steps.
    """
    torch.manual_seed(seed)
    training = training_of(config)
    if state_path.exists():
        training.load(state_path)
        log(f"goes on from step {training.num_steps_done}")
    started, total = time.monotonic(), 0.0
    for step in range(training.num_steps_done, settings.num_steps):
        # What a step draws depends on its number alone, so that a resumed run draws the same.
        torch.manual_seed(int(np.random.default_rng([seed, 21, step]).integers(2**62)))
        batch = batches.draw(settings.batch_size, np.random.default_rng([seed, 20, step]))
        loss = flow_loss(training.network, batch, settings.draws)
        loss.backward()
        training.step(late_decay(step, settings.num_steps, _WARM_UP_STEPS, _DECAY_SHARE))
        total += loss.item()
        done = step + 1
        if done % settings.log_every == 0:
            log(f"step {done} loss {total / settings.log_every:.5f} {time.monotonic() - started:.0f} s")
            total = 0.0
        if done % settings.checkpoint_every == 0 or done == settings.num_steps:
            training.save(state_path)
            checkpoint(done, training.average)
    return training.average


def flow_loss(network: Pi05Network, batch: Batch, draws: int) -> torch.Tensor:
    """Mean squared error of the velocity over the actions that are not given."""
    context = batch.context
    actions = batch.actions.repeat_interleave(draws, dim=0)
    given = torch.arange(actions.shape[1]) < batch.prefix.repeat_interleave(draws)[:, None]
    noise, times = torch.randn_like(actions), _draw_times(len(actions))
    x = torch.where(given[..., None], actions, torch.lerp(actions, noise, times[:, None, None]))
    # The last of the times is that of actions which are given.
    index = torch.where(given, len(times), torch.arange(len(times))[:, None])
    modulation = network.modulation(torch.cat([times, torch.zeros(1)])).rows(index)
    dense = network.dense_context(context.images, context.image_mask, context.ids, context.id_mask)
    velocity = network.dense_velocity(x, modulation, dense.repeated(draws))
    error = (velocity - (noise - actions)).square().mean(-1)
    return error[~given].mean()


def chunk_error(network: Pi05Network, batch: Batch, num_steps: int, seed: int = 0) -> tuple[float, float]:
    """Root mean square error of sampled chunks against the expert's, normalised: over all rows, and over the first."""
    noise = torch.randn(batch.actions.shape, generator=torch.Generator().manual_seed(seed))
    error = (sample_actions(network, batch.context, noise, num_steps) - batch.actions).square()
    return error.mean().sqrt().item(), error[:, 0].mean().sqrt().item()


def _draw_times(count: int) -> torch.Tensor:
    """Beta(1.5, 1), kept off 0: as published."""
    return torch.rand(count).pow(1 / 1.5) * 0.999 + 0.001
