"""Training of the backbone and the vision tower: images out of noise, and words about images, at once.

Source: arXiv 2505.14683, section 3; flow matching with times of a logit-normal distribution, arXiv 2403.03206.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from generators.bagel.config import BagelConfig
from generators.bagel.network import MotNetwork
from generators.bagel.train.batches import Batch, Batches
from generators.bagel.train.initialise import initialise
from generators.bagel.train.sequences import NO_LABEL, Sequences
from generators.bagel.train.training_state import training_of
from generators.bagel.vision import Vision
from mstar_rt.nn.training import late_decay

_WORDS_WEIGHT = 1.5
_DECAY_SHARE = 0.4
_TIME_MEAN, _TIME_DEVIATION = 0.4, 1.2
"""Of the times before the logistic function: somewhat toward the noise, where it is settled what is in a picture."""


@dataclass(frozen=True)
class FlowSettings:
    num_steps: int
    peak_rate: float = 2e-3
    num_warm_up_steps: int = 50
    log_every: int = 50
    checkpoint_every: int = 500


class BothNetworks(nn.Module):
    """What is trained: all of the model but the autoencoder."""

    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        self.config = config
        self.network, self.vision = MotNetwork(config), Vision(config)
        initialise(self.network, self.vision)


def train_flow(
    config: BagelConfig,
    batches: Batches,
    settings: FlowSettings,
    seed: int,
    state_path: Path,
    log: Callable[[str], None],
    checkpoint: Callable[[int, BothNetworks], None],
) -> BothNetworks:
    """The moving average of the weights, which is also what `checkpoint` gets on the way.

    A run that finds `state_path` goes on from there, with the same result as one that was not stopped; see late_decay.
    """
    torch.manual_seed(seed)
    both = BothNetworks(config)
    training = training_of(both, settings.peak_rate, _is_inner_matrix)
    if state_path.exists():
        training.load(state_path)
        log(f"flow goes on from step {training.num_steps_done}")
    started, totals, counts = time.process_time(), torch.zeros(2), torch.zeros(2)
    for step in range(training.num_steps_done, settings.num_steps):
        # What a step draws depends on its number alone, so that a resumed run draws the same.
        torch.manual_seed(int(np.random.default_rng([seed, 21, step]).integers(2**62)))
        for batch in batches.draw(np.random.default_rng([seed, 20, step])):
            flow, words = losses(both, batch)
            (flow + _WORDS_WEIGHT * words).backward()
            of_batch = torch.tensor([flow.item(), words.item()])
            totals += of_batch
            counts += of_batch > 0
        training.step(late_decay(step, settings.num_steps, settings.num_warm_up_steps, _DECAY_SHARE))
        done = step + 1
        if done % settings.log_every == 0:
            flow_loss, word_loss = (totals / counts).tolist()
            seconds = time.process_time() - started
            log(f"flow step {done} loss {flow_loss:.4f} of words {word_loss:.4f} {seconds:.0f} s of CPU")
            totals.zero_()
            counts.zero_()
        if done % settings.checkpoint_every == 0 or done == settings.num_steps:
            training.save(state_path)
            checkpoint(done, training.average)
    return training.average


def losses(both: BothNetworks, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared error of the velocity, and mean cross-entropy of words; 0 where the batch has none."""
    network, sequences = both.network, batch.sequences
    und = und_tokens(both, sequences, batch.pixels)
    flow = und.new_zeros(())
    if len(batch.latents):
        noise = torch.randn_like(batch.latents)
        drawn = torch.sigmoid(_TIME_MEAN + _TIME_DEVIATION * torch.randn(len(noise)))
        times = torch.where(batch.is_noise, drawn, 0.0)
        tokens = network.latents_in(torch.lerp(batch.latents, noise, times[:, None, None]), times, _grid(both.config))
        und, gen = network.forward_dense(
            und,
            tokens.flatten(0, 1)[sequences.latents],
            sequences.und_positions,
            sequences.gen_positions,
            sequences.mask,
        )
        assert gen is not None
        wanted = (noise - batch.latents).flatten(0, 1)[sequences.latents[sequences.is_noise]]
        flow = (network.velocity(gen[sequences.is_noise]) - wanted).square().mean()
    else:
        und, _ = network.forward_dense(und, None, sequences.und_positions, None, sequences.mask)
    is_learned = sequences.labels != NO_LABEL
    labels = sequences.labels[is_learned]
    words = functional.cross_entropy(network.scores(und[is_learned]).float(), labels, reduction="sum")
    return flow, words / max(1, len(labels))  # there may be no word to learn, where all thoughts are left out


def und_tokens(both: BothNetworks, sequences: Sequences, pixels: torch.Tensor | None) -> torch.Tensor:
    """[B, Nu, W]: words, and what is seen in pictures [P, 3, H, W]."""
    und = both.network.embed(sequences.ids)
    if pixels is None:
        return und
    seen = both.vision(pixels).flatten(0, 1)[sequences.looks.clamp(min=0)]
    return torch.where((sequences.looks >= 0)[..., None], seen.to(und.dtype), und)


def _grid(config: BagelConfig) -> tuple[int, int]:
    return config.max_latent_side, config.max_latent_side


def _is_inner_matrix(name: str, value: nn.Parameter) -> bool:
    return value.dim() == 2 and "layers." in name and "norm" not in name
