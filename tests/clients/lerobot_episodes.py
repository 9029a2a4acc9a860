"""LeRobot's own RobotClient, unchanged, drives the tabletop: a script of the environment that lerobot is installed in.

    python lerobot_episodes.py 127.0.0.1:50051 --actions-per-chunk 10 --task push_left --seeds 0 1 2

prints one line of JSON per episode: {"task", "seed", "success", "num_actions", "num_empty_ticks", "errors"}.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
os.chdir(tempfile.mkdtemp())  # it writes a folder of logs wherever it is started

import unused_imports

unused_imports.install()

import numpy as np
from lerobot.async_inference import robot_client
from lerobot.async_inference.configs import RobotClientConfig
from lerobot.robots import Robot, RobotConfig

from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.tabletop_servo import CONTROL_HZ

JOINTS = ("x.pos", "y.pos")
MOTION_TIMEOUT_S = 60.0


@RobotConfig.register_subclass("tabletop")
@dataclass(kw_only=True)
class TabletopConfig(RobotConfig):
    task: str
    seed: int


class Tabletop(Robot):
    """The world moves by one control period between two ticks of the client, towards the target that it was given last."""

    config_class = TabletopConfig
    name = "tabletop"

    def __init__(self, config: TabletopConfig) -> None:
        super().__init__(config)
        self.env = InstructionEnv(config.task)
        self._seen, _ = self.env.reset(seed=config.seed)
        self._target = np.asarray(self._seen["state"], np.float64)
        self._has_acted = False
        self.success = False
        self.num_actions = self.num_empty_ticks = 0
        self.over = threading.Event()

    @property
    def observation_features(self) -> dict[str, Any]:
        return {**dict.fromkeys(JOINTS, float), "top": (64, 64, 3), "wrist": (64, 64, 3)}

    @property
    def action_features(self) -> dict[str, Any]:
        return dict.fromkeys(JOINTS, float)

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self._move()
        self._target = np.array([action[joint] for joint in JOINTS])
        self._has_acted = True
        self.num_actions += 1
        return action

    def get_observation(self) -> dict[str, Any]:
        if not self._has_acted:
            self.num_empty_ticks += 1
            self._move()
        self._has_acted = False
        return {**dict(zip(JOINTS, map(float, self._seen["state"]), strict=True)), **self._seen["images"]}

    def _move(self) -> None:
        if self.num_actions and not self.over.is_set():  # before the first chunk the episode has not begun
            self._seen, _, self.success, failed, _ = self.env.step(self._target)
            if self.success or failed:
                self.over.set()

    is_connected = is_calibrated = True

    def connect(self, calibrate: bool = True) -> None:
        pass

    calibrate = configure = disconnect = lambda self: None


class Errors(logging.Handler):
    """What the client says when a call fails: it logs that and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())


def run_episode(address: str, task: str, seed: int, actions_per_chunk: int) -> dict[str, Any]:
    config = TabletopConfig(id="test", task=task, seed=seed, calibration_dir=Path.cwd())
    robot = Tabletop(config)
    robot_client.make_robot_from_config = lambda config: robot
    client = robot_client.RobotClient(
        RobotClientConfig(
            policy_type="pi05",
            pretrained_name_or_path="policy",
            robot=config,
            actions_per_chunk=actions_per_chunk,
            task=robot.env.instruction,
            server_address=address,
            fps=round(CONTROL_HZ),
        )
    )
    errors = Errors()
    client.logger.addHandler(errors)
    if not client.start():
        raise SystemExit(f"the client was not taken: {errors.sentences}")
    threads = [
        threading.Thread(target=client.receive_actions),
        threading.Thread(target=client.control_loop, args=(robot.env.instruction,)),
    ]
    for thread in threads:
        thread.start()
    robot.over.wait(MOTION_TIMEOUT_S)
    errors.setLevel(logging.CRITICAL)  # the call that waits when it stops fails
    client.stop()
    for thread in threads:
        thread.join()
    return {
        "task": task,
        "seed": seed,
        "success": robot.success,
        "num_actions": robot.num_actions,
        "num_empty_ticks": robot.num_empty_ticks,
        "errors": errors.sentences,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--actions-per-chunk", type=int, required=True)
    parser.add_argument("--task", action="append", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    for task in given.task:
        for seed in given.seeds:
            print(json.dumps(run_episode(given.address, task, seed, given.actions_per_chunk)), flush=True)


if __name__ == "__main__":
    main()
