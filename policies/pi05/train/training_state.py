"""The network in training, and its optimisers: Muon for the layers' matrices, else AdamW."""

from __future__ import annotations

import math

import torch

from mstar_rt.nn.rms_norm import AdaptiveRMSNorm
from mstar_rt.nn.training import AveragedTraining
from policies.pi05.config import Pi05Config
from policies.pi05.initialise import initialise
from policies.pi05.network import Pi05Network
from policies.pi05.train.vocabulary import FIRST_NUMBER_ID, NUMBERS

_AVERAGE_DECAY = 0.998
_PEAK_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.01
_NUMBER_FREQUENCY = 4.0


def training_of(config: Pi05Config) -> AveragedTraining[Pi05Network]:
    network = Pi05Network(config)
    open_for_training(network)
    named = dict(network.named_parameters())
    matrices = {name: value for name, value in named.items() if _is_inner_matrix(name, value)}
    others = [value for name, value in named.items() if name not in matrices]
    optimisers = (
        torch.optim.Muon(matrices.values(), weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=_WEIGHT_DECAY, betas=(0.9, 0.97), fused=True),
    )
    return AveragedTraining(
        network,
        [(optimiser, _PEAK_LEARNING_RATE) for optimiser in optimisers],
        lambda done: min(_AVERAGE_DECAY, 1 - 1 / done),
    )


@torch.no_grad()
def open_for_training(network: Pi05Network) -> None:
    """Fresh weights: all branches open, and bins of the state that are close to each other alike."""
    initialise(network)
    for module in network.modules():
        if isinstance(module, AdaptiveRMSNorm):
            module.dense.bias.unflatten(0, (3, -1))[2] = 1.0
    embeddings = network.embed_tokens.weight
    width = embeddings.shape[1]
    values = torch.linspace(-1.0, 1.0, len(NUMBERS))[:, None]
    waves = torch.cos(values * torch.randn(width) * _NUMBER_FREQUENCY + torch.rand(width) * 2 * math.pi)
    embeddings[FIRST_NUMBER_ID : FIRST_NUMBER_ID + len(NUMBERS)] = waves * math.sqrt(2 / width)


def _is_inner_matrix(name: str, value: torch.Tensor) -> bool:
    return value.dim() == 2 and ("layers." in name or "last_layer." in name) and "layernorm" not in name
