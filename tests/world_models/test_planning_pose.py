"""Poses in closed form, against the public implementation's, which goes through scipy one sample at a time."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from world_models.planning.pose import (
    canonical_pose,
    euler_of,
    integrate,
    integrate_all,
    pose_difference,
    retrace,
    rotation_matrix,
    translate,
)

angles = st.floats(-7.0, 7.0, allow_nan=False, width=32)
triples = st.tuples(angles, angles, angles).map(lambda values: torch.tensor(values, dtype=torch.float32))


def test_poses_are_the_published_ones(golden_poses: dict[str, torch.Tensor]) -> None:
    new = integrate(golden_poses["pose"], golden_poses["action"])
    torch.testing.assert_close(new, golden_poses["new_pose"], rtol=0, atol=1e-6)
    back = pose_difference(golden_poses["pose"], golden_poses["new_pose"])
    torch.testing.assert_close(back, golden_poses["pose_difference"], rtol=0, atol=1e-6)


@given(triples)
def test_canonical_angles_are_the_same_rotation_in_range(euler: torch.Tensor) -> None:
    pose = torch.cat([torch.zeros(3), euler, torch.zeros(1)])
    canonical = canonical_pose(pose)[3:6]
    torch.testing.assert_close(rotation_matrix(canonical), rotation_matrix(euler), rtol=0, atol=2e-6)
    assert canonical[0].abs() <= math.pi + 1e-6
    assert canonical[1].abs() <= math.pi / 2 + 1e-6
    assert canonical[2].abs() <= math.pi + 1e-6


def test_canonical_poses_are_not_touched() -> None:
    pose = torch.tensor([[0.1, 0.2, 0.3, 3.1, -1.5, -3.1, 0.4], [0.0, 0.0, 0.0, -2.0, 1.5, 0.3, 1.0]])
    assert torch.equal(canonical_pose(pose), pose)


@given(triples, triples)
def test_rotations_compose_in_the_base_frame(euler: torch.Tensor, turn: torch.Tensor) -> None:
    pose, action = (torch.cat([torch.zeros(3), angles, torch.zeros(1)]) for angles in (euler, turn))
    turned = rotation_matrix(integrate(pose, action)[3:6])
    torch.testing.assert_close(turned, rotation_matrix(turn) @ rotation_matrix(euler), rtol=0, atol=2e-6)


def test_straight_up_gives_all_of_the_turn_to_roll() -> None:
    for pitch in (math.pi / 2, -math.pi / 2):
        rotation = rotation_matrix(torch.tensor([0.3, pitch, 0.2], dtype=torch.float64))
        euler = euler_of(rotation)
        assert euler[2] == 0.0
        torch.testing.assert_close(rotation_matrix(euler), rotation, rtol=0, atol=1e-7)


def test_the_short_way_without_rotation_is_the_long_way() -> None:
    generator = torch.Generator().manual_seed(0)
    pose = canonical_pose(torch.randn(50, 7, generator=generator))
    action = torch.randn(50, 7, generator=generator) * torch.tensor([1, 1, 1, 0, 0, 0, 1.0])
    assert torch.equal(integrate(pose, action), translate(pose, action))
    gripper = translate(pose, action)[:, 6]
    assert gripper.min() >= 0.0
    assert gripper.max() <= 1.0


def test_sequences_without_rotation_are_the_same_steps_in_fewer_operations() -> None:
    generator = torch.Generator().manual_seed(1)
    pose = torch.tensor([0.4, 0.0, 0.3, 3.3, 1.8, -0.3, 0.5])
    actions = torch.randn(9, 5, 7, generator=generator) * torch.tensor([1, 1, 1, 0, 0, 0, 1.0])
    poses = integrate_all(pose, actions)
    for step in range(5):
        assert torch.equal(poses[:, step + 1], integrate(poses[:, step], actions[:, step]))
    assert torch.equal(poses[:, 0], canonical_pose(pose).expand(9, -1))


@given(triples, st.integers(0, 2**31))
def test_sequences_with_rotation_are_the_same_steps(euler: torch.Tensor, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pose = torch.cat([torch.rand(3, generator=generator), euler, torch.tensor([0.5])])
    actions = torch.randn(4, 6, 7, generator=generator) * 0.3
    actions[torch.rand(4, 6, generator=generator) < 0.4] *= torch.tensor([1, 1, 1, 0, 0, 0, 1.0])
    poses = integrate_all(pose, actions)
    assert torch.equal(poses[:, 0], canonical_pose(pose).expand(4, -1))
    for step in range(6):
        want = integrate(poses[:, step], actions[:, step])
        assert torch.equal(poses[:, step + 1, [0, 1, 2, 6]], want[:, [0, 1, 2, 6]])
        got, turned = (rotation_matrix(each[:, 3:6]) for each in (poses[:, step + 1], want))
        torch.testing.assert_close(got, turned, rtol=0, atol=2e-6)
        rests = ~actions[:, step, 3:6].any(dim=1)
        assert torch.equal(poses[rests, step + 1, 3:6], poses[rests, step, 3:6])


def test_sequences_of_poses_go_forth_and_back() -> None:
    generator = torch.Generator().manual_seed(4)
    pose = torch.tensor([0.4, 0.0, 0.3, 0.2, 0.4, -0.3, 0.5])
    actions = torch.randn(3, 5, 7, generator=generator) * 0.05
    poses = integrate_all(pose, actions)
    assert poses.shape == (3, 6, 7)
    for row in range(3):
        torch.testing.assert_close(retrace(poses[row, -1], actions[row]), poses[row, :-1], rtol=0, atol=1e-5)
    assert retrace(pose, actions[0, :0]).shape == (0, 7)
