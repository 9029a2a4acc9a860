"""Published environments, where they are installed: pip install 'mstar-rt[gym]'."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
from control_stream import POLICY, policy_runtime

from mstar_rt.client import connect
from mstar_rt.model import CameraSpec, VectorSpec
from sim_bridge.gym_bridge import drive
from sim_bridge.gym_mapping import GymMapping


def driven(env: gymnasium.Env[Any, Any], mapping: GymMapping, size: int, state: int, action: int) -> int:
    """Steps of one episode by a policy of the environment's sizes."""
    policy = dataclasses.replace(
        POLICY, cameras=(CameraSpec("top", size, size),), state=VectorSpec(state), action=VectorSpec(action),
        normalizations=(),
    )  # fmt: skip
    with policy_runtime(policy) as runtime, connect(runtime.address) as client:
        report = drive(client, "toy", env, mapping, seed=1, execute=4, instruction="push", clip_actions=True)
    env.close()
    (episode,) = report.episodes
    return episode.num_steps


@pytest.mark.filterwarnings("ignore")
def test_push_t() -> None:
    pytest.importorskip("gym_pusht", reason="gym-pusht is not installed")
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels_agent_pos", max_episode_steps=12)
    mapping = GymMapping({"top": "pixels"}, "agent_pos", action=lambda action: np.abs(action) % 512)
    assert driven(env, mapping, 96, 2, 2) == 12


@pytest.mark.filterwarnings("ignore")
def test_a_maze() -> None:
    """Its observation has no picture: one is made of what there is."""
    robotics = pytest.importorskip("gymnasium_robotics", reason="gymnasium-robotics is not installed")
    gymnasium.register_envs(robotics)
    env = gymnasium.make("PointMaze_UMaze-v3", max_episode_steps=6)
    mapping = GymMapping({"top": lambda seen: np.full((16, 16, 3), 9, np.uint8)}, ("observation", "desired_goal"))
    assert driven(env, mapping, 16, 6, 2) == 6
