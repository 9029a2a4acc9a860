"""End-effector poses of seven numbers, integrated in closed form and in batch.

A pose is (x, y, z, roll, pitch, yaw, gripper): metres, radians about the fixed axes x, then y, then z of the base
frame, gripper closedness in [0, 1]. An action is the difference of two poses: translation in the base frame, rotation
applied after the pose's own (R' = dR R), gripper delta.
Source: arXiv 2506.09985, section 3.1 (DROID's convention).
"""

from __future__ import annotations

import math

import numpy as np
import torch

GIMBAL_TOLERANCE = 1e-7
BOUNDS = (math.pi, math.pi / 2, math.pi)
"""Of canonical roll, pitch and yaw, either way."""
FLOAT32_BOUNDS = tuple(torch.tensor(BOUNDS).tolist())


def canonical_pose(pose: torch.Tensor) -> torch.Tensor:
    """The same pose [..., 7] with roll and yaw within pi and pitch within pi/2; canonical ones are unchanged."""
    euler = pose[..., 3:6]
    is_single = pose.ndim == 1 and pose.dtype is torch.float32  # a request's: three numbers are seen faster by Python
    if is_single and all(abs(angle) <= most for angle, most in zip(euler.tolist(), FLOAT32_BOUNDS, strict=True)):
        return pose
    bounds = euler.new_tensor(BOUNDS)
    is_canonical = (euler.abs() <= bounds).all(-1, keepdim=True)
    if is_canonical.all():
        return pose
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
    start = canonical_pose(pose)
    poses = _translated_all(start, actions)
    if actions[..., 3:6].any():
        angles = _turned_all(*(part[..., 3:6].to("cpu", torch.float64).numpy() for part in (start, actions)))
        poses[:, 1:, 3:6] = torch.from_numpy(angles)
    return poses


def _translated_all(start: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Two operations a step: angles stay as they are when zero is added to them."""
    poses = start.repeat(len(actions), actions.shape[1] + 1, 1)
    for step, action in enumerate(actions.unbind(1)):
        torch.add(poses[:, step], action, out=poses[:, step + 1])
        poses[:, step + 1, 6].clamp_(0.0, 1.0)
    return poses


def _turned_all(start: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Canonical angles along sequences of turns: [3], [N, H, 3] -> [N, H, 3]. One matrix product a step; as torch
    operations on so few numbers this took 120 us a step."""
    num_rows, horizon = turns.shape[:2]
    rotations = np.empty((num_rows, horizon, 3, 3))
    matrices = _matrices(np.concatenate([start[None], turns.reshape(-1, 3)]))
    now, matrices = matrices[0], matrices[1:].reshape(num_rows, horizon, 3, 3)
    for step in range(horizon):
        now = matrices[:, step] @ now
        rotations[:, step] = now
    cos_pitch = np.hypot(rotations[..., 0, 0], rotations[..., 1, 0])
    locked = cos_pitch < GIMBAL_TOLERANCE
    roll = np.where(
        locked,
        np.arctan2(-rotations[..., 1, 2], rotations[..., 1, 1]),
        np.arctan2(rotations[..., 2, 1], rotations[..., 2, 2]),
    )
    yaw = np.where(locked, 0.0, np.arctan2(rotations[..., 1, 0], rotations[..., 0, 0]))
    angles = np.stack([roll, np.arctan2(-rotations[..., 2, 0], cos_pitch), yaw], axis=-1)
    rests: np.ndarray = (turns == 0).all(axis=-1)
    if rests.any():  # angles that nothing turns stay as they are, to the last bit
        before = np.broadcast_to(start, (num_rows, 3))
        for step in range(horizon):
            before = angles[:, step] = np.where(rests[:, step, None], before, angles[:, step])
    return angles


def _matrices(euler: np.ndarray) -> np.ndarray:
    """As `rotation_matrix`: float64 [..., 3] -> [..., 3, 3]."""
    (sin_r, sin_p, sin_y), (cos_r, cos_p, cos_y) = (np.moveaxis(f(euler), -1, 0) for f in (np.sin, np.cos))
    matrices = np.empty((*euler.shape, 3))
    matrices[..., 0, 0] = cos_y * cos_p
    matrices[..., 0, 1] = cos_y * sin_p * sin_r - sin_y * cos_r
    matrices[..., 0, 2] = cos_y * sin_p * cos_r + sin_y * sin_r
    matrices[..., 1, 0] = sin_y * cos_p
    matrices[..., 1, 1] = sin_y * sin_p * sin_r + cos_y * cos_r
    matrices[..., 1, 2] = sin_y * sin_p * cos_r - cos_y * sin_r
    matrices[..., 2, 0] = -sin_p
    matrices[..., 2, 1] = cos_p * sin_r
    matrices[..., 2, 2] = cos_p * cos_r
    return matrices


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
