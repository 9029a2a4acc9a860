"""Gymnasium environments in the hands of the toy policy, over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from control_stream import answer, chunk_of, policy_runtime
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_env import ToyEnv
from toy_runtime import Job, ToyRuntime

from mstar_rt.client import Client, connect
from mstar_rt.client.recording.replay import replay
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from sim_bridge.environments import TABLETOP
from sim_bridge.gym_bridge import drive
from sim_bridge.gym_mapping import GymMapping
from sim_bridge.gym_report import GymReport

MAPPING = GymMapping(state=("joints", "gripper"))
SETTINGS: dict[str, Any] = {"instruction": "push", "normalization": "lab"}


async def noisy(job: Job) -> None:
    actions = chunk_of(job.inputs, int(job.submit.params.get("delay", 0)))  # type: ignore[arg-type]
    noise = np.random.default_rng(int(job.submit.params["seed"])).uniform(-0.2, 0.2, actions.shape)  # type: ignore[arg-type]
    answer(job, (actions % 2 + noise).astype(np.float32))


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        running.script("act", noisy)
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[Client]:
    with connect(runtime.address) as connected:
        yield connected


def run(client: Client, env: Any, **settings: Any) -> GymReport:
    return drive(client, "toy", env, MAPPING, **{**SETTINGS, **settings})


def test_in_lockstep_the_same_motion_comes_out_again(client: Client, tmp_path: Path) -> None:
    motions = []
    for number in range(2):
        env = ToyEnv()
        path = tmp_path / f"run{number}"
        report = run(client, env, seed=4, noise_seed=9, execute=2, episodes=3, record=path, chunking="prefix")
        motions.append(np.stack(env.actions))
        assert [(each.num_steps, each.total_reward, each.success) for each in report.episodes] == [
            (5, 5.0, True), (5, 5.0, False), (5, 5.0, True),
        ]  # fmt: skip
        assert env.seeds[:3] == [4, 5, 6]
        assert report.stats[0].num_observations == 3 * 3, "an episode of 5 steps, of which a chunk covers 2"
        assert str(report).startswith("3 episodes, 15 steps: success 0.67, mean return 5.000\n9 chunks in ")
        assert replay(client, path).num_equal == 9
    np.testing.assert_array_equal(*motions)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_is_several_robots(client: Client, tmp_path: Path, mode: AutoresetMode) -> None:
    def alone(index: int) -> list[np.ndarray]:
        env = ToyEnv(num_steps=3 + index)
        run(client, env, seed=index, noise_seed=20 + index, execute=2)
        return env.actions

    envs = SyncVectorEnv([lambda steps=steps: ToyEnv(steps) for steps in (3, 4)], autoreset_mode=mode)
    report = run(client, envs, seed=0, noise_seed=20, execute=2, episodes=2, record=tmp_path / "run.rec")
    assert [(each.robot, each.number, each.num_steps) for each in report.episodes] == [
        (0, 0, 3), (0, 1, 3), (1, 0, 4), (1, 1, 4),
    ]  # fmt: skip
    assert [each.success for each in report.episodes][::2] == [True, False]
    for index in range(2):
        moved = envs.envs[index].actions
        np.testing.assert_array_equal(moved[: 3 + index], alone(index))
        assert replay(client, tmp_path / f"run-{index}.rec").num_equal == report.stats[index].chunks["used"]


def test_in_real_time_the_clock_decides(client: Client) -> None:
    clock = ManualClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance_ns(int(seconds * 1e9) + (200_000_000 if len(slept) == 3 else 0))

    env = ToyEnv(num_steps=8)
    report = run(
        client, env, realtime=True, execute=4, hold=[0.0, 0.0], clock=clock, sleep=sleep, max_action_age_s=60.0
    )
    assert len(env.actions) == len(slept) == 8
    assert slept == pytest.approx([0.05, 0.05, 0.05, 0.0, 0.05, 0.05, 0.05, 0.05])
    assert (report.num_late_ticks, report.episodes[0].num_held) == (1, 0)
    envs = SyncVectorEnv([ToyEnv, ToyEnv])
    report = run(client, envs, realtime=True, hold=[0.0, 0.0], clock=clock, sleep=sleep, max_action_age_s=60.0)
    assert [each.num_steps for each in report.episodes] == [5, 5]
    with pytest.raises(InvalidArgument, match="several robots in real time step together"):
        run(client, envs, realtime=True, hold="repeat_last")


def test_actions_beyond_the_space_are_counted_and_clipped_where_asked(client: Client) -> None:
    for clips in (False, True):
        env = ToyEnv(num_steps=2)
        env.action_space = gymnasium.spaces.Box(-0.01, 0.01, (2,), np.float32)
        report = run(client, env, clip_actions=clips)
        assert report.episodes[0].num_outside == 2
        assert (np.abs(env.actions).max() <= 0.01) == clips
        assert "2 actions beyond the action space" in str(report)


def test_what_does_not_fit_is_refused_before_anything_moves(client: Client) -> None:
    env = ToyEnv(size=12)
    with pytest.raises(
        FailedPrecondition, match=r"camera 'top' is 12x12, it expects 16x16 .*; the state has 2 numbers"
    ):
        drive(client, "toy", env, GymMapping(state="joints"), **SETTINGS)
    assert env.actions == []
    with pytest.raises(InvalidArgument, match="replan_every is given: use execute"):
        run(client, ToyEnv(), replan_every=2)
    with pytest.raises(InvalidArgument, match="1 instructions for 2 robots"):
        run(client, SyncVectorEnv([ToyEnv, ToyEnv]), instruction=["push"])
    with pytest.raises(InvalidArgument, match="env is a int, expected a gymnasium"):
        run(client, 3)


def test_the_tabletop_has_a_name() -> None:
    env = gymnasium.make(f"sim_bridge.environments:{TABLETOP}", task="touch")
    assert env.unwrapped.instruction == "touch the puck"
    assert env.metadata["render_fps"] == 20
