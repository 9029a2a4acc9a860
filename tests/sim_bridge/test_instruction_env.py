"""The tabletop for policies that are told what to do: the servo, the tasks, success, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mstar_rt.errors import InvalidArgument, NotFound
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.instruction_tasks import EPISODE_TICKS, HELD_TICKS, TASKS, sample_start, task_named
from sim_bridge.tabletop_physics import CONTACT_DISTANCE_M, EFFECTOR_LIMIT_M
from sim_bridge.tabletop_servo import ServoTabletop

FAR = np.array([0.2, -0.2])


@pytest.mark.filterwarnings("ignore")
def test_follows_the_gymnasium_interface() -> None:
    check_env(InstructionEnv("touch", render_mode="rgb_array"), skip_render_check=False)


def test_the_servo_is_at_its_target_when_the_tick_ends() -> None:
    physics = ServoTabletop()
    physics.place(np.array([-0.1, 0.1]), FAR)
    target = np.array([-0.1, 0.1])
    for _ in range(8):
        target = target + np.array([0.008, -0.004])
        physics.follow(target)
    physics.follow(target)
    np.testing.assert_allclose(physics.effector_xy, target, atol=5e-4)


def test_a_far_target_is_approached_at_the_servos_speed() -> None:
    physics = ServoTabletop()
    physics.place(np.array([-0.2, 0.2]), FAR)
    for _ in range(8):
        physics.follow(np.array([0.2, 0.2]))
    # 8 ticks at 12.5 mm, of which the rod is 5 mm behind.
    assert -0.2 + 0.1 - 0.007 < physics.effector_xy[0] < -0.2 + 0.1


def test_a_stalled_rod_comes_back_at_once() -> None:
    physics = ServoTabletop()
    physics.place(np.array([EFFECTOR_LIMIT_M - 0.01, 0.2]), FAR)
    for _ in range(20):
        physics.follow(np.array([0.9, 0.2]))
    stalled = physics.effector_xy
    assert stalled[0] < EFFECTOR_LIMIT_M + 0.003
    for _ in range(2):
        physics.follow(stalled - np.array([0.05, 0.0]))
    assert physics.effector_xy[0] < stalled[0] - 0.01


def test_a_snapshot_holds_everything() -> None:
    physics = ServoTabletop()
    physics.place(np.array([-0.12, 0.0]), np.array([-0.02, 0.0]))
    physics.follow(np.array([0.1, 0.0]))
    before = physics.snapshot()

    def push() -> np.ndarray:
        for _ in range(5):
            physics.follow(np.array([0.1, 0.0]))
        return np.concatenate([physics.effector_xy, physics.puck_xy])

    pushed = push()
    physics.restore(before)
    np.testing.assert_array_equal(push(), pushed)


def test_same_seed_and_actions_give_the_same_episode() -> None:
    def episode() -> list[np.ndarray]:
        env = InstructionEnv("push_left")
        observation, _ = env.reset(seed=5)
        rng = np.random.default_rng(0)
        for _ in range(10):
            observation, *_ = env.step(observation["state"] + rng.uniform(-0.01, 0.01, 2))
        return [observation["state"], observation["images"]["top"], observation["images"]["wrist"]]

    for first, second in zip(episode(), episode(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_scenes_do_not_tell_tasks_apart_and_none_is_solved_at_the_start() -> None:
    for seed in range(200):
        effector, puck = sample_start(seed)
        assert not any(task.reached(effector, puck, puck) for name, task in TASKS.items() if name != "corner")
    scenes = [InstructionEnv(name).reset(seed=3)[0]["images"]["top"] for name in TASKS]
    assert all(np.array_equal(scene, scenes[0]) for scene in scenes)


def test_phrasings_are_of_one_task_only_and_the_held_out_ones_are_held_out() -> None:
    texts = [text for task in TASKS.values() for text in (*task.phrasings, *task.held_out_phrasings)]
    assert len(set(texts)) == len(texts)


def test_success_is_to_keep_the_goal_for_half_a_second() -> None:
    env = InstructionEnv("corner")
    env.reset(seed=0)
    ended_at = None
    reached_at = None
    for tick in range(EPISODE_TICKS):
        _, reward, terminated, truncated, info = env.step(np.array([-0.2, 0.2], np.float32))
        reached_at = tick if reached_at is None and info["reached"] else reached_at
        if terminated:
            ended_at = tick
            break
        assert reward == 0.0
    assert reached_at is not None
    assert ended_at == reached_at + HELD_TICKS - 1
    assert reward == 1.0
    assert not truncated


def test_touching_is_not_pushing() -> None:
    touching = np.array([CONTACT_DISTANCE_M + 0.003, 0.0])
    start = np.zeros(2)
    assert task_named("touch").reached(touching, start, start)
    moved = np.array([0.05, 0.0])
    assert not task_named("touch").reached(touching + moved, start + moved, start)
    assert not task_named("touch").reached(touching + 0.2 * moved, start, start)


def test_an_episode_without_success_is_truncated() -> None:
    env = InstructionEnv("push_top")
    observation, _ = env.reset(seed=1)
    ends = [env.step(observation["state"])[2:4] for _ in range(EPISODE_TICKS)]
    assert ends == [(False, False)] * (EPISODE_TICKS - 1) + [(False, True)]


def test_wrong_use_is_refused() -> None:
    with pytest.raises(NotFound, match="did you mean 'push_left'"):
        InstructionEnv("push_lef")
    with pytest.raises(InvalidArgument, match="render_mode"):
        InstructionEnv("touch", render_mode="human")
    env = InstructionEnv("touch")
    env.reset(seed=0)
    with pytest.raises(InvalidArgument, match="options"):
        env.reset(options={"a": 1})
    for action, message in (
        (np.zeros(3), r"shape \(2,\)"),
        (np.array([np.nan, 0.0]), "finite"),
        (np.array([1.5, 0.0]), "within 1.0 m"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            env.step(action)
