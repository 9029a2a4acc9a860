"""What the training scripts of the models share: the state of a run between two steps, its rates, and its log."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")


Trained = TypeVar("Trained", bound=nn.Module)


class AveragedTraining(Generic[Trained]):
    """A network, the moving average of its weights, and its optimisers: what a run has between two steps."""

    def __init__(
        self,
        network: Trained,
        optimisers: Sequence[tuple[torch.optim.Optimizer, float]],
        decay_after: Callable[[int], float],
    ) -> None:
        """`optimisers`: each of one parameter group, with its peak learning rate. `decay_after`: of the average, by the
        number of steps that are done, from 1."""
        self.network = network
        self.average: Trained = copy.deepcopy(network).requires_grad_(False)
        self.num_steps_done = 0
        self._optimisers = tuple(optimisers)
        self._decay_after = decay_after

    def step(self, rate: float) -> None:
        """One step of the optimisers along the gradients, which are taken, at this share of the peak learning rates."""
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimiser, peak in self._optimisers:
            optimiser.param_groups[0]["lr"] = peak * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.num_steps_done += 1
        decay = self._decay_after(self.num_steps_done)
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.network.parameters(), strict=True):
                kept.lerp_(new, 1 - decay)

    def save(self, path: Path) -> None:
        tensors = {"num_steps_done": torch.tensor(self.num_steps_done)}
        for part, module in self._networks.items():
            tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            for moment, value in self._moments(parameter).items():
                tensors[f"optimiser.{moment}.{name}"] = value
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, str(path))

    def load(self, path: Path) -> None:
        """The inverse of `save`, in place."""
        tensors = load_file(str(path))
        for part, module in self._networks.items():
            prefix = f"{part}."
            module.load_state_dict(
                {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            )
        for name, parameter in self.network.named_parameters():
            for moment in _MOMENTS:
                if (key := f"optimiser.{moment}.{name}") in tensors:
                    self._moments(parameter)[moment] = tensors[key]
        self.num_steps_done = int(tensors["num_steps_done"])

    @property
    def _networks(self) -> Mapping[str, nn.Module]:
        return {"network": self.network, "average": self.average}

    def _moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        owner = next(o for o, _ in self._optimisers if any(parameter is p for p in o.param_groups[0]["params"]))
        return owner.state[parameter]


def late_decay(step: int, num_steps: int, num_warm_up_steps: int, decay_share: float) -> float:
    """Share of the peak learning rate: a linear rise, constant, and linear to nothing over `decay_share` of the steps.

    So a run that was stopped before the end of the constant part may be resumed with another number of steps, and is
    the same as an uninterrupted run with the new number.
    """
    share_left = (num_steps - step) / num_steps
    return min(1.0, (step + 1) / num_warm_up_steps, share_left / decay_share)


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
