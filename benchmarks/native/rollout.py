"""The rollout that a user of the published world model writes: all frames so far through the predictor, every step."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch.nn import functional as F

from benchmarks.native.predictor import NativePredictor


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
    predictor: NativePredictor,
    latents: torch.Tensor,
    actions: torch.Tensor,
    pose: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:
    """The latent [B, P, D] after each of `actions` [B, H, 7], from one frame [P, D] at `pose` [7].

    bfloat16 is autocast: weights, norms and what goes from step to step stay float32. One context around all steps, so
    that the weights are converted once.
    """
    num_sequences = len(actions)
    frames = latents.expand(num_sequences, 1, *latents.shape)
    poses = pose.expand(num_sequences, 1, 7)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        for step in range(actions.shape[1]):
            predicted = predictor(frames, actions[:, : step + 1], poses)[:, -1:]
            predicted = F.layer_norm(predicted.float(), predicted.shape[-1:])
            frames = torch.cat([frames, predicted], dim=1)
            poses = torch.cat([poses, compute_new_pose(poses[:, -1:], actions[:, step : step + 1])], dim=1)
    return list(frames[:, 1:].unbind(1))
