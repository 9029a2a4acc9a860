"""Training of the autoencoder: pictures through a narrow Gaussian and back."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from generators.bagel.autoencoder import Autoencoder
from generators.bagel.config import AutoencoderConfig
from generators.bagel.train.pictures import to_pixels
from generators.bagel.train.training_state import cosine, training_of
from sim_bridge.shapes import draw, draw_scene

_KL_WEIGHT = 3e-4


@dataclasses.dataclass(frozen=True)
class AutoencoderSettings:
    num_steps: int
    batch_size: int = 24
    peak_rate: float = 2e-3
    num_warm_up_steps: int = 50
    log_every: int = 50
    checkpoint_every: int = 200
    is_bfloat16: bool = False


def train_autoencoder(
    config: AutoencoderConfig,
    settings: AutoencoderSettings,
    seed: int,
    state_path: Path,
    log: Callable[[str], None],
) -> Autoencoder:
    """The moving average of the weights, with scale and shift that give latents of mean 0 and variance 1.

    A run that finds `state_path` goes on from there, with the same result as one that was not stopped.
    """
    torch.manual_seed(seed)
    training = training_of(Autoencoder(config), settings.peak_rate)
    if state_path.exists():
        training.load(state_path)
        log(f"autoencoder goes on from step {training.num_steps_done}")
    started, total = time.process_time(), 0.0
    for step in range(training.num_steps_done, settings.num_steps):
        # What a step draws depends on its number alone, so that a resumed run draws the same.
        torch.manual_seed(int(np.random.default_rng([seed, 11, step]).integers(2**62)))
        rng = np.random.default_rng([seed, 10, step])
        pictures = to_pixels(np.array([draw(draw_scene(rng)) for _ in range(settings.batch_size)]))
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.is_bfloat16):
            loss = reconstruction_loss(training.network, pictures)
        loss.backward()
        training.step(cosine(step, settings.num_steps, settings.num_warm_up_steps))
        total += loss.item()
        done = step + 1
        if done % settings.log_every == 0:
            mean = total / settings.log_every
            log(f"autoencoder step {done} loss {mean:.5f} {time.process_time() - started:.0f} s of CPU")
            total = 0.0
        if done % settings.checkpoint_every == 0 or done == settings.num_steps:
            training.save(state_path)
    return standardised(training.average, seed)


def reconstruction_loss(autoencoder: Autoencoder, pixels: torch.Tensor) -> torch.Tensor:
    """Mean absolute error of pixels [N, 3, H, W], and a little of the distance of the latents from N(0, 1)."""
    moments = autoencoder.encode(pixels)
    mean, log_variance = (part.float() for part in moments)
    drawn = autoencoder.decode(autoencoder.latents(moments, torch.randn_like(moments.mean)))
    distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    error = drawn.float() - pixels
    return error.abs().mean() + error.square().mean() + _KL_WEIGHT * distance


@torch.no_grad()
def standardised(autoencoder: Autoencoder, seed: int, num_pictures: int = 400) -> Autoencoder:
    """The same weights as float16 has them, with the scale and shift that make latents have mean 0 and variance 1 over
    all channels: what comes after it is trained on the latents that are served."""
    autoencoder = copy.deepcopy(autoencoder).half().float()
    rng = np.random.default_rng([seed, 12])
    moments = autoencoder.encode(to_pixels(np.array([draw(draw_scene(rng)) for _ in range(num_pictures)])))
    mean, deviation = float(moments.mean.mean()), float(moments.mean.std())
    config = dataclasses.replace(autoencoder.config, scale=round(1 / deviation, 5), shift=round(mean, 5))
    fresh = Autoencoder(config)
    fresh.load_state_dict(autoencoder.state_dict())
    return fresh.requires_grad_(False)
