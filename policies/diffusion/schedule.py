"""How noise is taken off step by step: denoising diffusion, with noise of its own (DDPM) or without (DDIM).

Noise was mixed into actions in training as sqrt(a) actions + sqrt(1 - a) noise, a being smaller in every later step.
Source: arXiv 2006.11239 (formulas 7 and 15), 2010.02502 (formula 12, eta 0); the cosine of the steps is 2102.09672's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from policies.diffusion.config import ScheduleConfig

LARGEST_BETA = 0.999
COSINE_OFFSET = 0.008


@dataclass(frozen=True)
class Turn:
    """One of the steps that take the noise off: everything that depends on nothing but its place.

    `step` is that of training which it undoes. The latent becomes `clean` times the actions that it stands for, plus
    `kept` times itself, plus `noise` times the noise that is in it, plus `fresh` times new noise.
    """

    step: int
    signal_root: float
    noise_root: float
    clean: float
    kept: float
    noise: float
    fresh: float


class NoiseSchedule:
    """The turns of a chunk, for any number of them."""

    def __init__(self, config: ScheduleConfig) -> None:
        self.config = config
        self.signals = torch.cumprod(1 - betas(config), dim=0)
        """What a is after each step of training; float32, as in training."""
        self._turns: dict[int, tuple[Turn, ...]] = {}

    def turns(self, num_steps: int) -> tuple[Turn, ...]:
        """In their order, evenly spaced over the steps of training, the last being its first."""
        if num_steps not in self._turns:
            stride = self.config.num_train_steps // num_steps
            steps = [index * stride for index in reversed(range(num_steps))]
            self._turns[num_steps] = tuple(
                self._turn(step, after) for step, after in zip(steps, [*steps[1:], None], strict=True)
            )
        return self._turns[num_steps]

    def times(self, num_steps: int) -> torch.Tensor:
        """The steps of training that the turns undo, int64 [num_steps]."""
        return torch.tensor([turn.step for turn in self.turns(num_steps)])

    def denoised(
        self, turns: list[Turn], latents: torch.Tensor, predicted: torch.Tensor, fresh: torch.Tensor
    ) -> torch.Tensor:
        """Each latent [B, H, A] after its turn, from what the network predicted of it. All float32."""

        def each(name: str) -> torch.Tensor:
            values = [getattr(turn, name) for turn in turns]
            return torch.tensor(values, dtype=torch.float32, device=latents.device)[:, None, None]

        signal, noise = each("signal_root"), each("noise_root")
        if self.config.predicts == "epsilon":
            clean, inside = (latents - noise * predicted) / signal, predicted
        else:
            clean, inside = predicted, (latents - signal * predicted) / noise
        if self.config.clip is not None:
            clean = clean.clamp(-self.config.clip, self.config.clip)
        return each("clean") * clean + each("kept") * latents + each("noise") * inside + each("fresh") * fresh

    def _turn(self, step: int, after: int | None) -> Turn:
        signal = self.signals[step].double()
        later = torch.ones_like(signal) if after is None else self.signals[after].double()
        roots = {"signal_root": float(signal.sqrt()), "noise_root": float((1 - signal).sqrt())}
        if self.config.kind == "DDIM":
            clean, inside = float(later.sqrt()), float((1 - later).sqrt())
            return Turn(step, **roots, clean=clean, kept=0.0, noise=inside, fresh=0.0)
        ratio = signal / later
        clean = float(later.sqrt() * (1 - ratio) / (1 - signal))
        kept = float(ratio.sqrt() * (1 - later) / (1 - signal))
        fresh = float(((1 - later) / (1 - signal) * (1 - ratio)).sqrt())
        return Turn(step, **roots, clean=clean, kept=kept, noise=0.0, fresh=fresh)


def betas(config: ScheduleConfig) -> torch.Tensor:
    """How much noise each step of training adds, [num_train_steps] float32."""
    count, start, end = config.num_train_steps, config.beta_start, config.beta_end
    if config.betas == "linear":
        return torch.linspace(start, end, count)
    if config.betas == "scaled_linear":
        return torch.linspace(math.sqrt(start), math.sqrt(end), count) ** 2
    left = [_cosine(index / count) for index in range(count + 1)]
    return torch.tensor([min(1 - after / before, LARGEST_BETA) for before, after in pairwise(left)])


def _cosine(progress: float) -> float:
    return math.cos((progress + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2) ** 2
