"""End-effector poses of seven numbers, integrated in closed form and in batch.

A pose is (x, y, z, roll, pitch, yaw, gripper): metres, radians about the fixed axes x, then y, then z of the base
frame, gripper closedness in [0, 1]. An action is the difference of two poses: translation in the base frame, rotation
applied after the pose's own (R' = dR R), gripper delta.
Source: arXiv 2506.09985, section 3.1 (DROID's convention).
"""

from __future__ import annotations

import math

import torch

GIMBAL_TOLERANCE = 1e-7


def canonical_pose(pose: torch.Tensor) -> torch.Tensor:
    """The same pose [..., 7] with roll and yaw within pi and pitch within pi/2; canonical ones are unchanged."""
    euler = pose[..., 3:6]
    bounds = euler.new_tensor((math.pi, math.pi / 2, math.pi))
    is_canonical = (euler.abs() <= bounds).all(-1, keepdim=True)
    canonical = torch.where(is_canonical, euler, euler_of(rotation_matrix(euler)).to(euler.dtype))
    return torch.cat([pose[..., :3], canonical, pose[..., 6:]], dim=-1)


def translate(pose: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """`integrate` for actions whose rotation is known to be zero and poses known to be canonical: no trigonometry."""
    gripper = (pose[..., 6:] + action[..., 6:]).clamp(0.0, 1.0)
    return torch.cat([pose[..., :3] + action[..., :3], pose[..., 3:6].expand_as(action[..., 3:6]), gripper], dim=-1)


def integrate(pose: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The pose after an action: two [..., 7] -> [..., 7] with canonical angles and the gripper inside [0, 1]."""
    moved = translate(canonical_pose(pose), action)
    turned = rotation_matrix(action[..., 3:6]) @ rotation_matrix(pose[..., 3:6])
    turns = (action[..., 3:6] != 0).any(-1, keepdim=True)
    euler = torch.where(turns, euler_of(turned).to(pose.dtype), moved[..., 3:6])
    return torch.cat([moved[..., :3], euler, moved[..., 6:]], dim=-1)


def integrate_all(pose: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """All poses along action sequences: pose [7], actions [N, H, 7] -> [N, H + 1, 7], the given pose first."""
    step = integrate if actions[..., 3:6].any() else translate
    poses = [canonical_pose(pose).expand(len(actions), -1)]
    for action in actions.unbind(1):
        poses.append(step(poses[-1], action))
    return torch.stack(poses, dim=1)


def retrace(pose: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The poses from which `actions` [T, 7] led to `pose` [7], oldest first: [T, 7].

    The gripper is traced back inside [0, 1]; where it had hit a limit its past is not known better.
    """
    poses = []
    for action in reversed(actions.unbind(0)):
        inverse = rotation_matrix(action[3:6]).transpose(-1, -2) @ rotation_matrix(pose[3:6])
        euler = euler_of(inverse).to(pose.dtype) if action[3:6].any() else canonical_pose(pose)[3:6]
        gripper = (pose[6:] - action[6:]).clamp(0.0, 1.0)
        pose = torch.cat([pose[:3] - action[:3], euler, gripper])
        poses.append(pose)
    return torch.stack(poses[::-1]) if poses else actions.new_zeros(0, 7)


def pose_difference(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The action [..., 7] that leads from one pose to another, whatever the gripper's range."""
    turned = rotation_matrix(after[..., 3:6]) @ rotation_matrix(before[..., 3:6]).transpose(-1, -2)
    euler = euler_of(turned).to(before.dtype)
    return torch.cat([after[..., :3] - before[..., :3], euler, after[..., 6:] - before[..., 6:]], dim=-1)


def rotation_matrix(euler: torch.Tensor) -> torch.Tensor:
    """(roll, pitch, yaw) [..., 3] -> Rz(yaw) Ry(pitch) Rx(roll) [..., 3, 3], float64: pitch near +-pi/2 needs it."""
    sin_r, sin_p, sin_y = euler.double().sin().unbind(-1)
    cos_r, cos_p, cos_y = euler.double().cos().unbind(-1)
    rows = (
        (cos_y * cos_p, cos_y * sin_p * sin_r - sin_y * cos_r, cos_y * sin_p * cos_r + sin_y * sin_r),
        (sin_y * cos_p, sin_y * sin_p * sin_r + cos_y * cos_r, sin_y * sin_p * cos_r - cos_y * sin_r),
        (-sin_p, cos_p * sin_r, cos_p * cos_r),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def euler_of(rotation: torch.Tensor) -> torch.Tensor:
    """The inverse of `rotation_matrix`, canonical; with pitch at +-pi/2 yaw is 0 and roll takes the whole turn."""
    cos_pitch = torch.hypot(rotation[..., 0, 0], rotation[..., 1, 0])
    pitch = torch.atan2(-rotation[..., 2, 0], cos_pitch)
    locked = cos_pitch < GIMBAL_TOLERANCE
    roll = torch.where(
        locked,
        torch.atan2(-rotation[..., 1, 2], rotation[..., 1, 1]),
        torch.atan2(rotation[..., 2, 1], rotation[..., 2, 2]),
    )
    yaw = torch.where(locked, torch.zeros_like(pitch), torch.atan2(rotation[..., 1, 0], rotation[..., 0, 0]))
    return torch.stack([roll, pitch, yaw], dim=-1)
