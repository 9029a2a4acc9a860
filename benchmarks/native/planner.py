"""The published planner's search, around whatever imagines the candidates' ends. Written from its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.native.predictor import NativePredictor
from benchmarks.native.rollout import rollout

Imagine = Callable[[torch.Tensor], torch.Tensor]
"""Actions [S, H, 7] -> the latents [S, P, D] that they end at."""


@dataclass(frozen=True)
class NativeSettings:
    """Options of the search, by the published names.

    `axis` pins dimensions of (x, y, z, gripper). From step `close_gripper` on the gripper closes.
    """

    rollout: int
    samples: int
    topk: int
    cem_steps: int
    momentum_mean: float = 0.15
    momentum_std: float = 0.15
    momentum_mean_gripper: float = 0.15
    momentum_std_gripper: float = 0.15
    maxnorm: float = 0.05
    axis: dict[int, float] | None = None
    close_gripper: int | None = None


def native_imagination(
    predictor: NativePredictor, context: torch.Tensor, pose: torch.Tensor, dtype: torch.dtype = torch.float32
) -> Imagine:
    """Candidates imagined as `rollout` does it, from one frame [P, D] at `pose` [7]."""

    def imagine(actions: torch.Tensor) -> torch.Tensor:
        return rollout(predictor, context, actions, pose, dtype)[-1]

    return imagine


@torch.inference_mode()
def plan(imagine: Imagine, goal: torch.Tensor, settings: NativeSettings, seed: int) -> torch.Tensor:
    """Actions [H, 7] by the cross-entropy method; goal [P, D]."""
    torch.manual_seed(seed)
    s = settings
    mean = torch.zeros(s.rollout, 4)
    for dimension, value in (s.axis or {}).items():
        mean[:, dimension] = value
    std = torch.tensor([s.maxnorm, s.maxnorm, s.maxnorm, 1.0]).repeat(s.rollout, 1)
    mean_share = torch.tensor([s.momentum_mean] * 3 + [s.momentum_mean_gripper])
    std_share = torch.tensor([s.momentum_std] * 3 + [s.momentum_std_gripper])
    for _ in range(s.cem_steps):
        actions = torch.stack([_drawn(h, mean[h], std[h], s) for h in range(s.rollout)], dim=1)
        cost = (imagine(actions) - goal).abs().mean(dim=(1, 2))
        elites = actions[cost.topk(s.topk, largest=False).indices][..., [0, 1, 2, 6]]
        mean = elites.mean(0) * (1 - mean_share) + mean * mean_share
        std = elites.std(0) * (1 - std_share) + std * std_share
    gripper = torch.where(mean[:, 3:].abs() < 0.25, 0.0, mean[:, 3:])
    return torch.cat([mean[:, :3], torch.zeros(s.rollout, 3), gripper], dim=-1)


def _drawn(step: int, mean: torch.Tensor, std: torch.Tensor, settings: NativeSettings) -> torch.Tensor:
    """One step of every candidate [S, 7]. Steps are drawn one after the other, as the published noise is."""
    drawn = torch.randn(settings.samples, 4) * std + mean
    drawn[:, :3] = drawn[:, :3].clip(-settings.maxnorm, settings.maxnorm)
    drawn[:, 3] = drawn[:, 3].clip(-0.75, 0.75)
    for dimension, value in (settings.axis or {}).items():
        drawn[:, dimension] = value
    if settings.close_gripper is not None and step >= settings.close_gripper:
        drawn[:, 3] = 1.0
    return torch.cat([drawn[:, :3], torch.zeros(settings.samples, 3), drawn[:, 3:]], dim=-1)
