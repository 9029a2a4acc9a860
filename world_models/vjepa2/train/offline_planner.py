"""The cross-entropy method in plain torch, for many episodes at once: what the trained model is judged by.

The published planner (arXiv 2506.09985, section 4) with z and gripper pinned to zero, and the mean of the last plan,
shifted by one step, as the start of the next.
"""

from __future__ import annotations

import dataclasses

import torch

from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train.imagination import Imagination


@dataclasses.dataclass(frozen=True)
class CemSettings:
    rollout_horizon: int = 3
    num_samples: int = 96
    num_elites: int = 12
    num_iterations: int = 3
    momentum: float = 0.15
    max_displacement_m: float = 0.05
    warm_start: bool = True


class OfflinePlanner:
    """Plans for E episodes in one batch and remembers their last plans."""

    def __init__(self, predictor: ActionPredictor, settings: CemSettings, num_episodes: int, seed: int) -> None:
        self._predictor = predictor
        self._settings = settings
        self._mean = torch.zeros(num_episodes, settings.rollout_horizon, 2)
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def plan(self, latents: torch.Tensor, goal: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """latents, goal [E, P, D]; positions [E, 2] metres -> planned displacements [E, H, 2], metres."""
        settings = self._settings
        mean = self._start()
        std = torch.full_like(mean, settings.max_displacement_m)
        limit = settings.max_displacement_m
        for _ in range(settings.num_iterations):
            noise = torch.randn(len(mean), settings.num_samples, *mean.shape[1:], generator=self._generator)
            actions = (noise * std[:, None] + mean[:, None]).clamp(-limit, limit)
            cost = self._cost(latents, goal, positions, actions)
            best = cost.topk(settings.num_elites, dim=1, largest=False).indices
            elites = actions.gather(1, best[:, :, None, None].expand(-1, -1, *mean.shape[1:]))
            keep = settings.momentum
            mean = (1 - keep) * elites.mean(1) + keep * mean
            std = (1 - keep) * elites.std(1) + keep * std
        self._mean = mean
        return mean

    def _start(self) -> torch.Tensor:
        if not self._settings.warm_start:
            return torch.zeros_like(self._mean)
        return torch.cat((self._mean[:, 1:], torch.zeros_like(self._mean[:, :1])), 1)

    def _cost(
        self, latents: torch.Tensor, goal: torch.Tensor, positions: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """Mean L1 between the imagined final frame and the goal, [E, S]."""
        num_samples = actions.shape[1]
        flat = torch.nn.functional.pad(actions.flatten(0, 1), (0, 5))
        state = torch.nn.functional.pad(positions, (0, 5)).repeat_interleave(num_samples, 0)
        imagined = latents.repeat_interleave(num_samples, 0)
        imagination = Imagination(self._predictor, len(flat))
        for step in range(actions.shape[2]):
            imagined = imagination.step(imagined, flat[:, step], state)
            state = state + flat[:, step]
        distance = (imagined.unflatten(0, (-1, num_samples)) - goal[:, None]).abs()
        return distance.mean((2, 3))
