"""What a training run has between two steps: weights, their moving average, and the optimisers; and how to keep it."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mstar_rt.nn.rms_norm import AdaptiveRMSNorm
from policies.pi05.config import Pi05Config
from policies.pi05.initialise import initialise
from policies.pi05.network import Pi05Network
from policies.pi05.train.vocabulary import FIRST_NUMBER_ID, NUMBERS

_AVERAGE_DECAY = 0.998
_PEAK_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.01
_NUMBER_FREQUENCY = 4.0
_MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")


class TrainingState:
    """The network, the moving average of its weights, and the optimisers: Muon for the layers' matrices, else AdamW."""

    def __init__(self, config: Pi05Config) -> None:
        self.network = Pi05Network(config)
        open_for_training(self.network)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.num_steps_done = 0
        self._named = dict(self.network.named_parameters())
        matrices = {name: value for name, value in self._named.items() if _is_inner_matrix(name, value)}
        others = [value for name, value in self._named.items() if name not in matrices]
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
        decay = min(_AVERAGE_DECAY, 1 - 1 / self.num_steps_done)
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.network.parameters(), strict=True):
                kept.lerp_(new, 1 - decay)
        return loss.item()

    def save(self, path: Path) -> None:
        tensors = {"num_steps_done": torch.tensor(self.num_steps_done)}
        tensors |= {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        for name, parameter in self._named.items():
            for moment, value in self._moments(parameter).items():
                tensors[f"optimiser.{moment}.{name}"] = value
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, str(path))

    def load(self, path: Path) -> None:
        tensors = load_file(str(path))
        self.num_steps_done = int(tensors["num_steps_done"])
        for part, module in (("network.", self.network), ("average.", self.average)):
            module.load_state_dict(
                {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            )
        for name, parameter in self._named.items():
            for moment in _MOMENTS:
                if (key := f"optimiser.{moment}.{name}") in tensors:
                    self._moments(parameter)[moment] = tensors[key]

    def _moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        owner = next(o for o in self._optimisers if any(parameter is p for p in o.param_groups[0]["params"]))
        return owner.state[parameter]


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
