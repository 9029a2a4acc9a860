"""The planning loop that a user of the published world model writes: recompute everything, every step.

Written from the description of the algorithm, as a careful user would: no gradients, the predictor's dense forward over
all frames so far, one pose update per candidate and step with SciPy's rotations, costs on the last frame only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch.nn import functional as F

from world_models.vjepa2.predictor import ActionPredictor


@dataclass(frozen=True)
class NativeSettings:
    """Options of the search, by the published names. `axis` pins dimensions of (x, y, z, gripper)."""

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


def compute_new_pose(pose: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """[B, 1, 7] poses after [B, 1, 7] actions, one by one on the CPU."""
    poses = []
    for p, a in zip(pose[:, 0].numpy(), action[:, 0].numpy(), strict=True):
        rotated = Rotation.from_euler("xyz", a[3:6]) * Rotation.from_euler("xyz", p[3:6])
        gripper = np.clip(p[6:] + a[6:], 0, 1)
        poses.append(np.concatenate([p[:3] + a[:3], rotated.as_euler("xyz"), gripper]))
    return torch.from_numpy(np.stack(poses)[:, None]).to(pose)


@torch.inference_mode()
def rollout(
    predictor: ActionPredictor, latents: torch.Tensor, actions: torch.Tensor, pose: torch.Tensor
) -> torch.Tensor:
    """Latents [B, 1 + H, P, D] of actions [B, H, 7] from one frame [B, 1, P, D] at pose [B, 1, 7]."""
    frames, poses = latents, pose
    for step in range(actions.shape[1]):
        predicted = predictor(frames, actions[:, : step + 1], poses)[:, -1:]
        frames = torch.cat([frames, F.layer_norm(predicted, predicted.shape[-1:])], dim=1)
        poses = torch.cat([poses, compute_new_pose(poses[:, -1:], actions[:, step : step + 1])], dim=1)
    return frames


@torch.inference_mode()
def plan(
    predictor: ActionPredictor,
    context: torch.Tensor,
    goal: torch.Tensor,
    pose: torch.Tensor,
    settings: NativeSettings,
    seed: int,
) -> torch.Tensor:
    """Actions [H, 7] by the cross-entropy method; context [P, D], goal [P, D], pose [7]."""
    torch.manual_seed(seed)
    s = settings
    mean = torch.zeros(s.rollout, 4)
    std = torch.tensor([s.maxnorm, s.maxnorm, s.maxnorm, 1.0]).repeat(s.rollout, 1)
    for _ in range(s.cem_steps):
        frames = context.expand(s.samples, 1, *context.shape)
        poses = pose.expand(s.samples, 1, 7)
        actions = torch.empty(s.samples, 0, 7)
        for h in range(s.rollout):
            drawn = torch.randn(s.samples, 4) * std[h] + mean[h]
            drawn[:, :3] = drawn[:, :3].clip(-s.maxnorm, s.maxnorm)
            drawn[:, 3] = drawn[:, 3].clip(-0.75, 0.75)
            for dimension, value in (s.axis or {}).items():
                drawn[:, dimension] = value
            action = torch.cat([drawn[:, :3], torch.zeros(s.samples, 3), drawn[:, 3:]], dim=-1)[:, None]
            actions = torch.cat([actions, action], dim=1)
            predicted = predictor(frames, actions, poses)[:, -1:]
            frames = torch.cat([frames, F.layer_norm(predicted, predicted.shape[-1:])], dim=1)
            poses = torch.cat([poses, compute_new_pose(poses[:, -1:], action)], dim=1)
        cost = (frames[:, -1] - goal).abs().mean(dim=(1, 2))
        elites = actions[cost.topk(s.topk, largest=False).indices][..., [0, 1, 2, 6]]
        mean_share = torch.tensor([s.momentum_mean] * 3 + [s.momentum_mean_gripper])
        std_share = torch.tensor([s.momentum_std] * 3 + [s.momentum_std_gripper])
        mean = elites.mean(0) * (1 - mean_share) + mean * mean_share
        std = elites.std(0) * (1 - std_share) + std * std_share
    gripper = torch.where(mean[:, 3:].abs() < 0.25, 0.0, mean[:, 3:])
    return torch.cat([mean[:, :3], torch.zeros(s.rollout, 3), gripper], dim=-1)
