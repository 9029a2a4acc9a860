"""The tabletop environment: contact physics, the seven-number convention, determinism, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mstar_rt.errors import FailedPrecondition, InvalidArgument, NotFound
from sim_bridge.tabletop import TabletopEnv
from sim_bridge.tabletop_physics import (
    CONTACT_DISTANCE_M,
    EFFECTOR_LIMIT_M,
    PUCK_LIMIT_M,
    TabletopPhysics,
)


def _action(x: float, y: float) -> np.ndarray:
    return np.array([x, y, 0, 0, 0, 0, 0], np.float32)


@pytest.fixture
def env() -> TabletopEnv:
    env = TabletopEnv("reach")
    env.reset(seed=3)
    return env


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["reach", "push"])
def test_follows_the_gymnasium_interface(kind: str) -> None:
    check_env(TabletopEnv(kind, render_mode="rgb_array"), skip_render_check=False)  # type: ignore[arg-type]


def test_free_rod_moves_as_commanded() -> None:
    physics = TabletopPhysics()
    physics.place(np.array([-0.1, 0.1]), np.array([0.2, -0.2]))
    for command in ([0.05, -0.03], [-0.004, 0.05], [0.0, 0.0], [0.001, 0.0]):
        moved = physics.move(np.array(command))
        np.testing.assert_allclose(moved, command, atol=5e-4)
    np.testing.assert_allclose(physics.puck_xy, [0.2, -0.2], atol=1e-4)


def test_rod_pushes_the_puck_and_friction_stops_it() -> None:
    physics = TabletopPhysics()
    physics.place(np.array([-0.1, 0.0]), np.array([0.0, 0.0]))
    for _ in range(3):
        physics.move(np.array([0.05, 0.0]))
    pushed = physics.puck_xy
    assert 0.12 < pushed[0] < 0.14
    assert abs(pushed[1]) < 0.005
    physics.move(np.array([-0.05, 0.0]))
    physics.move(np.array([-0.05, 0.0]))
    np.testing.assert_allclose(physics.puck_xy, pushed, atol=0.003)


def test_off_centre_push_deflects_the_puck_to_the_other_side() -> None:
    physics = TabletopPhysics()
    physics.place(np.array([-0.1, 0.02]), np.array([0.0, 0.0]))
    for _ in range(3):
        physics.move(np.array([0.05, 0.0]))
    assert physics.puck_xy[1] < -0.02


def test_walls_hold_whatever_is_squeezed_against_them() -> None:
    rng = np.random.default_rng(0)
    physics = TabletopPhysics()
    for _ in range(20):
        angle = rng.uniform(-np.pi, np.pi)
        physics.place(np.array([0.15, 0.15]) - 0.1 * np.array([np.cos(angle), np.sin(angle)]), np.array([0.15, 0.15]))
        for _ in range(10):
            toward = physics.puck_xy - physics.effector_xy
            physics.move(0.05 * toward / np.linalg.norm(toward))
            assert np.abs(physics.puck_xy).max() < PUCK_LIMIT_M + 0.003
            assert np.abs(physics.effector_xy).max() < EFFECTOR_LIMIT_M + 0.003
            assert np.linalg.norm(physics.puck_xy - physics.effector_xy) > CONTACT_DISTANCE_M - 0.006


def test_same_seed_and_actions_give_the_same_episode() -> None:
    def episode() -> tuple[np.ndarray, np.ndarray]:
        env = TabletopEnv("push")
        observation, _ = env.reset(seed=11)
        rng = np.random.default_rng(1)
        for _ in range(6):
            observation, *_ = env.step(_action(*rng.uniform(-0.05, 0.05, 2)))
        return observation["image"], observation["state"]

    first, second = episode(), episode()
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_info_gives_realised_displacement_and_distance(env: TabletopEnv) -> None:
    before, _ = env.reset(seed=3)
    after, reward, terminated, truncated, info = env.step(_action(0.03, -0.02))
    np.testing.assert_array_equal(info["displacement"], after["state"] - before["state"])
    assert info["distance_m"] == pytest.approx(np.linalg.norm(info["effector_xy"] - info["goal_xy"]))
    assert reward == -info["distance_m"]
    assert not terminated
    assert not truncated
    assert info["success"] == (info["distance_m"] <= 0.030)


def test_episode_is_truncated_after_its_steps(env: TabletopEnv) -> None:
    ends = [env.step(_action(0.0, 0.0))[3] for _ in range(env.task.num_steps)]
    assert ends == [False] * (env.task.num_steps - 1) + [True]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(6), r"shape \(7,\), got \(6,\)"),
        (_action(float("nan"), 0), "finite"),
        (_action(0.0501, 0), r"action\[0\] \(x\) must be within"),
        (_action(0, -0.06), r"action\[1\] \(y\) must be within"),
        (np.array([0, 0, 0.01, 0, 0, 0, 0]), "cannot move in z"),
        (np.array([0, 0, 0, 0, 0, 0, 1.0]), "cannot move in gripper"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(env: TabletopEnv, action: np.ndarray, message: str) -> None:
    still, *_ = TabletopEnv("reach").reset(seed=3)
    with pytest.raises(InvalidArgument, match=message):
        env.step(action)
    observation, *_ = env.step(_action(0, 0))
    np.testing.assert_allclose(observation["state"], still["state"], atol=1e-6)


def test_the_float32_limit_itself_is_allowed(env: TabletopEnv) -> None:
    env.step(env.action_space.high)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(NotFound, match="did you mean 'push'"):
        TabletopEnv("pusch")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="render_mode"):
        TabletopEnv("push", render_mode="human")
    with pytest.raises(FailedPrecondition, match="reset"):
        TabletopEnv("push").step(_action(0, 0))
    with pytest.raises(InvalidArgument, match="options"):
        TabletopEnv("push").reset(seed=0, options={"goal": 1})


def test_render_draws_the_goal_that_the_camera_does_not_show() -> None:
    env = TabletopEnv("push", render_mode="rgb_array", render_size_px=128)
    observation, _ = env.reset(seed=4)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (128, 128, 3)
    is_goal_green = (picture[..., 1] > 100) & (picture[..., 0] < 80) & (picture[..., 2] < 110)
    assert is_goal_green.sum() > 30
    assert observation["image"].shape == (64, 64, 3)
