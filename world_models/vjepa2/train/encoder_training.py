"""Pretraining of the encoder on pixel targets (see `targets`)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from world_models.vjepa2.config import EncoderConfig
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.train.episodes import Episodes
from world_models.vjepa2.train.targets import ChromaMaps, normalise_images, picture_distance

# Mean L1 distance between latents of two random frames; independent normalised latents would stand 1.13 apart.
_MEAN_LATENT_DISTANCE = 0.7
_EPISODES_PER_BATCH = 24
_FRAMES_PER_DRAW = 4


def train_encoder(
    config: EncoderConfig,
    episodes: Episodes,
    num_steps: int,
    seed: int,
    log: Callable[[str], None],
    peak_learning_rate: float = 1.5e-3,
) -> Encoder:
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 10])
    encoder = Encoder(config)
    maps = ChromaMaps(torch.from_numpy(episodes.images[::7, 5][:1500]))
    heads = _Heads(config, maps.num_values)
    distance_scale = _distance_scale(maps, episodes, rng)
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=peak_learning_rate, weight_decay=0.04, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, peak_learning_rate, total_steps=num_steps + 1, pct_start=0.08, final_div_factor=100
    )
    started = time.monotonic()
    for step in range(num_steps):
        images = _draw_frames(episodes, rng)
        losses = _losses(encoder, heads, maps, images, distance_scale)
        optimiser.zero_grad(set_to_none=True)
        sum(losses.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == num_steps - 1:
            parts = " ".join(f"{name} {value.item():.4f}" for name, value in losses.items())
            log(f"encoder step {step} {parts} {time.monotonic() - started:.0f} s")
    return encoder.eval()


class _Heads(nn.Module):
    """Linear read-outs of one normalised token: the whole picture's maps, and the pixels of its own patch."""

    def __init__(self, config: EncoderConfig, num_map_values: int) -> None:
        super().__init__()
        self.picture = nn.Linear(config.dim, num_map_values)
        self.patch = nn.Linear(config.dim, config.patch_values)


def _losses(
    encoder: Encoder, heads: _Heads, maps: ChromaMaps, images: torch.Tensor, distance_scale: float
) -> dict[str, torch.Tensor]:
    frames = normalise_images(images)
    latents = encoder.encode_frames(frames)
    targets = maps(images)
    flat_targets = [target.flatten(1) for target in targets]
    read = heads.picture(latents).split([target.shape[1] for target in flat_targets], dim=-1)
    picture = sum(
        (functional.mse_loss(r, t[:, None].expand_as(r)) for r, t in zip(read, flat_targets, strict=True)),
        torch.zeros(()),
    )
    size = encoder.config.patch_size
    patches = (
        frames.unflatten(3, (-1, size)).unflatten(2, (-1, size)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    )
    patch = functional.mse_loss(heads.patch(latents), patches)
    flat = latents.flatten(1)
    distance = torch.cdist(flat, flat, p=1) / flat.shape[1]
    wanted = picture_distance(targets) * distance_scale
    apart = ~torch.eye(len(flat), dtype=torch.bool)
    spread = ((distance - wanted).abs() / (wanted + 0.05))[apart].mean()
    return {"picture": picture, "patch": 0.5 * patch, "distance": spread}


def _draw_frames(episodes: Episodes, rng: np.random.Generator) -> torch.Tensor:
    """Several frames of several episodes, so that the distances in a batch are both short and long."""
    which = rng.integers(len(episodes.images), size=_EPISODES_PER_BATCH).repeat(_FRAMES_PER_DRAW)
    when = rng.integers(episodes.images.shape[1], size=len(which))
    return torch.from_numpy(episodes.images[which, when])


def _distance_scale(maps: ChromaMaps, episodes: Episodes, rng: np.random.Generator) -> float:
    which = rng.integers(len(episodes.images), size=256)
    distances = picture_distance(maps(torch.from_numpy(episodes.images[which, 8])))
    return _MEAN_LATENT_DISTANCE / float(distances.mean())
