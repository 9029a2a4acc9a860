"""What a training run has between two steps: weights, their moving average, and the optimisers; and how to keep it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from mstar_rt.nn.training import average_into, load_state, save_state

_AVERAGE_DECAY = 0.997
_WEIGHT_DECAY = 0.01
_DECAY_SHARE = 0.4


class TrainingState:
    """A network, the moving average of its weights, and the optimisers: Muon for the matrices that `is_inner` names,
    else AdamW."""

    def __init__(
        self, network: nn.Module, peak_rate: float, is_inner: Callable[[str, nn.Parameter], bool] = lambda n, p: False
    ) -> None:
        self.network = network
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.num_steps_done = 0
        self._peak_rate = peak_rate
        named = dict(network.named_parameters())
        inner = [value for name, value in named.items() if is_inner(name, value)]
        others = [value for name, value in named.items() if not is_inner(name, value)]
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, weight_decay=_WEIGHT_DECAY, betas=(0.9, 0.98), fused=True)
        ]
        if inner:
            self._optimisers.append(torch.optim.Muon(inner, weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"))

    def step(self, rate: float) -> None:
        """One step of the optimisers along the gradients, which are taken, at this share of the peak learning rate."""
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimiser in self._optimisers:
            optimiser.param_groups[0]["lr"] = self._peak_rate * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.num_steps_done += 1
        average_into(self.average, self.network, min(_AVERAGE_DECAY, 1 - 1 / (1 + self.num_steps_done / 4)))

    def save(self, path: Path) -> None:
        save_state(path, self.num_steps_done, self._networks, self._optimisers)

    def load(self, path: Path) -> None:
        self.num_steps_done = load_state(path, self._networks, self._optimisers)

    @property
    def _networks(self) -> dict[str, nn.Module]:
        return {"network": self.network, "average": self.average}


def cosine(step: int, num_steps: int, num_warm_up_steps: int) -> float:
    """Share of the peak learning rate: a short linear rise, then half a cosine down to nothing."""
    rise = min(1.0, (step + 1) / num_warm_up_steps)
    return rise * 0.5 * (1 + math.cos(math.pi * step / num_steps))


def late_decay(step: int, num_steps: int, num_warm_up_steps: int) -> float:
    """The like: a short linear rise, constant, and linear to nothing. So a run that was stopped before the end of the
    constant part may be resumed with another number of steps."""
    share_left = (num_steps - step) / num_steps
    return min(1.0, (step + 1) / num_warm_up_steps, share_left / _DECAY_SHARE)
