"""What a training run has between two steps: weights, their moving average, and the optimisers; and how to keep it."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from torch import nn

from mstar_rt.nn.rms_norm import AdaptiveRMSNorm
from mstar_rt.nn.training import average_into, load_state, save_state
from policies.pi05.config import Pi05Config
from policies.pi05.initialise import initialise
from policies.pi05.network import Pi05Network
from policies.pi05.train.vocabulary import FIRST_NUMBER_ID, NUMBERS

_AVERAGE_DECAY = 0.998
_PEAK_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.01
_NUMBER_FREQUENCY = 4.0


class TrainingState:
    """The network, the moving average of its weights, and the optimisers: Muon for the layers' matrices, else AdamW."""

    def __init__(self, config: Pi05Config) -> None:
        self.network = Pi05Network(config)
        open_for_training(self.network)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.num_steps_done = 0
        named = dict(self.network.named_parameters())
        matrices = {name: value for name, value in named.items() if _is_inner_matrix(name, value)}
        others = [value for name, value in named.items() if name not in matrices]
        self._optimisers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices.values(), weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, weight_decay=_WEIGHT_DECAY, betas=(0.9, 0.97), fused=True),
        )

    def step(self, loss: torch.Tensor, rate: float) -> float:
        """One step of the optimisers at this share of the peak learning rate; returns the loss."""
        for optimiser in self._optimisers:
            optimiser.param_groups[0]["lr"] = _PEAK_LEARNING_RATE * rate
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
        self.num_steps_done += 1
        average_into(self.average, self.network, min(_AVERAGE_DECAY, 1 - 1 / self.num_steps_done))
        return loss.item()

    def save(self, path: Path) -> None:
        save_state(path, self.num_steps_done, self._networks, self._optimisers)

    def load(self, path: Path) -> None:
        self.num_steps_done = load_state(path, self._networks, self._optimisers)

    @property
    def _networks(self) -> dict[str, nn.Module]:
        return {"network": self.network, "average": self.average}


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
