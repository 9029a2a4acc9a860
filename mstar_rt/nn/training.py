"""What the training scripts of the models share: the state of a run between two steps, and its log."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")


def average_into(average: nn.Module, source: nn.Module, decay: float) -> None:
    """Move the running average of the weights towards those of `source`."""
    with torch.no_grad():
        for kept, new in zip(average.parameters(), source.parameters(), strict=True):
            kept.lerp_(new, 1 - decay)


def save_state(
    path: Path, num_steps_done: int, networks: Mapping[str, nn.Module], optimisers: Sequence[torch.optim.Optimizer]
) -> None:
    """Networks by name, the first of which is what the optimisers move."""
    tensors = {"num_steps_done": torch.tensor(num_steps_done)}
    for part, module in networks.items():
        tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
    for name, parameter in next(iter(networks.values())).named_parameters():
        for moment, value in _moments(parameter, optimisers).items():
            tensors[f"optimiser.{moment}.{name}"] = value
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, str(path))


def load_state(path: Path, networks: Mapping[str, nn.Module], optimisers: Sequence[torch.optim.Optimizer]) -> int:
    """The inverse of `save_state`, in place; returns the number of steps that were done."""
    tensors = load_file(str(path))
    for part, module in networks.items():
        prefix = f"{part}."
        module.load_state_dict(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
    for name, parameter in next(iter(networks.values())).named_parameters():
        for moment in _MOMENTS:
            if (key := f"optimiser.{moment}.{name}") in tensors:
                _moments(parameter, optimisers)[moment] = tensors[key]
    return int(tensors["num_steps_done"])


def _moments(parameter: nn.Parameter, optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    owner = next(o for o in optimisers if any(parameter is p for p in o.param_groups[0]["params"]))
    return owner.state[parameter]


class RunLog:
    """The log of one training run: to the terminal and to a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "train.log"
        self._started = time.monotonic()

    def log(self, line: str) -> None:
        line = f"[{time.monotonic() - self._started:7.0f} s] {line}"
        print(line, flush=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
