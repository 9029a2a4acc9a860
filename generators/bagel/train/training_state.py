"""The networks in training, their optimisers, and the learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from mstar_rt.nn.training import AveragedTraining, Trained

_AVERAGE_DECAY = 0.997
_WEIGHT_DECAY = 0.01


def training_of(
    network: Trained, peak_rate: float, is_inner: Callable[[str, nn.Parameter], bool] = lambda n, p: False
) -> AveragedTraining[Trained]:
    """With Muon for the matrices that `is_inner` names, else AdamW."""
    named = dict(network.named_parameters())
    inner = [value for name, value in named.items() if is_inner(name, value)]
    others = [value for name, value in named.items() if not is_inner(name, value)]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, weight_decay=_WEIGHT_DECAY, betas=(0.9, 0.98), fused=True)
    ]
    if inner:
        optimisers.append(torch.optim.Muon(inner, weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"))
    return AveragedTraining(
        network,
        [(optimiser, peak_rate) for optimiser in optimisers],
        lambda done: min(_AVERAGE_DECAY, 1 - 1 / (1 + done / 4)),
    )


def cosine(step: int, num_steps: int, num_warm_up_steps: int) -> float:
    """Share of the peak learning rate: a short linear rise, then half a cosine down to nothing."""
    rise = min(1.0, (step + 1) / num_warm_up_steps)
    return rise * 0.5 * (1 + math.cos(math.pi * step / num_steps))
