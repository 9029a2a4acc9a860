"""Robots against a deployment: what they get, and what they do when processes stop, die and come back."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composite_serving import ENVIRONMENT
from serving import Serving, assert_nothing_is_held, write_deployment

from mstar_rt.client import Client, ControlSession, RobotAction, connect_async

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SIZE, HORIZON = 16, 8
STATE = np.array([0.5, 0.25, 0.0], np.float32)
GUIDED = {"chunking": "guided", "schedule": "linear"}
IMAGES = {"top": np.full((SIZE, SIZE, 3), 100, np.uint8)}
LONG = {"budget_ms": 60_000.0, "max_action_age_s": 600.0}
"""For tests that are about something else than time."""


def start(folder: Path, port: int) -> Serving:
    data = {
        "name": "control-test",
        "server": {"port": port},
        "admission": {"utilisation_bound": None},  # some hold their worker up on purpose
        "models": [{"name": "toy", "family": "toy_policy:declare"}],
        "workers": [{"rank": 0, "shared_memory_mb": 16}],
        "placement": [{"model": "toy", "ranks": [0]}],
    }
    with open(folder / "log", "a") as log:
        return Serving(write_deployment(folder, data), ENVIRONMENT, log)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Serving]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = start(folder, port)
    try:
        yield running.wait()
    finally:
        running.end()


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with serving.connect() as connected:
        yield connected


def control(client: Client, **settings: Any) -> ControlSession:
    """A robot without a wrist camera."""
    policy = client.describe("toy").policy
    assert policy is not None
    schema = dataclasses.replace(policy.schema, cameras=policy.schema.cameras[:1], normalization="lab")
    given = {"control_hz": 20.0, "instruction": "push", "schema": schema, **LONG, **settings}
    return client.control("toy", **given)  # type: ignore[no-any-return]


def act(robot: ControlSession) -> RobotAction:
    return robot.act(images=IMAGES, state=STATE)


def arrived(robot: ControlSession, seq: int) -> None:
    while (newest := robot.latest()) is None or newest.seq < seq:
        pass


def expected(index: int) -> np.ndarray:
    """The toy's row for IMAGES and STATE."""
    return STATE[:2] + 1.0 + index / 100


def test_a_robot_is_driven(client: Client) -> None:
    with control(client, replan_every=HORIZON) as robot:
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        for index in range(HORIZON):
            action = act(robot)
            assert (action.chunk_seq, action.index) == (1, index)
            np.testing.assert_allclose(action.action, expected(index), rtol=1e-6)
        assert robot.latest().timing.total_us > 0
    assert_nothing_is_held(client)


@pytest.mark.parametrize("mode", ["guided", "guided_identity", "prefix", "temporal_ensemble"])
def test_late_chunks_go_on_where_the_robot_is(client: Client, mode: str) -> None:
    """Three actions are consumed between two observations, and up to three while a chunk is made, of which the toy repeats
    as many as it is told.
    """
    with control(client, chunking=mode, replan_every=3, hold_s=0.02) as robot:
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        assert [act(robot).index for _ in range(3)] == [0, 1, 2]
        for seq in range(2, 6):
            assert [act(robot).kind for _ in range(3)] == ["chunk"] * 3
            arrived(robot, seq)
        stats = robot.stats
        # It acts as fast as it is answered, which is over the rate that it said: that is flagged, and no more.
        events = {kind: count for kind, count in stats.events.items() if kind != "flagged"}
        assert (stats.starvation_ticks, stats.chunks, events) == (0, {"used": 5}, {"connected": 1})
        assert act(robot).index == 3, "the last chunk answers what was seen three actions ago"
        known = [0] if mode == "temporal_ensemble" else stats.delays.tolist()
        assert robot.latest().delay_assumed in known


def test_another_episode_and_another_instruction(client: Client) -> None:
    with control(client, seed=3) as robot:
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        assert act(robot).instruction == "push"
        robot.set_instruction("pull")
        robot.reset("touch", seed=4)
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        action = act(robot)
        assert (action.index, action.instruction, robot.latest().epoch) == (0, "touch", 1)
        kinds = {each.kind for each in robot.events}
        assert "reset_done" in kinds


async def test_an_asyncio_robot_is_driven(serving: Serving) -> None:
    async with connect_async(serving.address) as client:
        policy = (await client.describe("toy")).policy
        assert policy is not None
        schema = dataclasses.replace(policy.schema, normalization="field")
        session = client.control("toy", control_hz=20.0, instruction="push", schema=schema, **GUIDED, **LONG)
        async with session as robot:
            seen = {"images": {**IMAGES, "wrist": IMAGES["top"]}, "state": STATE}
            await robot.wait_for_first_action(30.0, **seen)
            action = await robot.act(**seen)
            np.testing.assert_allclose(action.action, expected(0) + 1000, rtol=1e-6)
            masked = await robot.act(IMAGES, STATE, masked_cameras=["wrist"])
            assert masked.kind == "chunk"


def test_a_model_that_is_too_slow_says_so(client: Client) -> None:
    with control(client, budget_ms=5.0, hold_s=0.05) as robot:
        assert act(robot).kind == "hold"
        while not robot.stats.events.get("late", 0) + robot.stats.events.get("dropped_late", 0):
            act(robot)


def test_a_server_that_is_stopped_is_left_and_found_again(serving: Serving, client: Client) -> None:
    """Its kernel still answers, so nothing but heartbeats tells."""
    with control(client, heartbeat_timeout_s=0.5, max_action_age_s=0.4, **GUIDED) as robot:
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        serving.process.send_signal(signal.SIGSTOP)
        try:
            until(robot, "stop")
            while robot.connected:
                act(robot)
        finally:
            serving.process.send_signal(signal.SIGCONT)
        until_epoch(robot, 1)
        lost = [each.detail for each in robot.events if each.kind == "connection_lost"]
        assert "the server has not answered for 0.5 s" in lost
    assert_nothing_is_held(client)


def until(robot: ControlSession, kind: str) -> RobotAction:
    while (action := act(robot)).kind != kind:
        pass
    return action


def until_epoch(robot: ControlSession, at_least: int) -> None:
    """The robot has actions again that were made in a later epoch."""
    while (newest := robot.latest()) is None or newest.epoch < at_least:
        act(robot)


ROBOT = """
import sys, numpy as np
from mstar_rt.client import connect
import dataclasses
with connect(sys.argv[1]) as client:
    schema = client.describe("toy").policy.schema
    schema = dataclasses.replace(schema, cameras=schema.cameras[:1], normalization="lab")
    with client.control("toy", control_hz=20.0, instruction="push", schema=schema, hold_s=0.3) as robot:
        images = {"top": np.zeros((16, 16, 3), np.uint8)}
        robot.act(images, np.zeros(3))
        print("driven", flush=True)
        while True:
            robot.act(images, np.zeros(3))
"""


def test_a_robot_that_is_killed_leaves_nothing_behind(serving: Serving, client: Client) -> None:
    script = [sys.executable, "-c", ROBOT, serving.address]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as robot:
        assert robot.stdout is not None
        assert robot.stdout.readline() == "driven\n"
        robot.kill()
    assert_nothing_is_held(client)


def test_a_server_that_is_killed_and_started_again(serving: Serving, folder: Path) -> None:
    """Last of this file: the deployment is another process afterwards."""
    with serving.connect() as client, control(client, max_action_age_s=0.4, hold=[0.0, 0.0], **GUIDED) as robot:
        robot.wait_for_first_action(30.0, IMAGES, STATE)
        os.killpg(serving.process.pid, signal.SIGKILL)
        serving.process.wait()
        stopped = until(robot, "stop")
        assert stopped.action.tolist() == [0.0, 0.0]
        assert "no answer from the server" in until_reason(robot)
        port = int(serving.address.rpartition(":")[2])
        serving.process = start(folder, port).process
        serving.wait()
        until_epoch(robot, 1)
        assert until(robot, "chunk").action is not None


def until_reason(robot: ControlSession) -> str:
    while "server" not in (action := act(robot)).reason:
        pass
    return action.reason


# ---- shared memory


@pytest.mark.parametrize("shared_memory", [True, "auto", False])
def test_chunks_are_the_same_through_memory_and_through_the_connection(client: Client, shared_memory: Any) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (12, SIZE, SIZE, 3), np.uint8)
    with control(client, shared_memory=shared_memory, seed=1) as robot:
        for picture in pictures:
            seq = robot.send({"top": picture}, STATE)
            arrived(robot, seq)
            first = STATE[:2] + np.float32(picture.mean()) / 100
            np.testing.assert_allclose(robot.latest().actions[0], first, rtol=1e-5)
        stats = robot.stats
    assert stats.shared_memory == (shared_memory is not False)
    assert stats.num_shared == (len(pictures) if stats.shared_memory else 0)


def test_a_robot_that_is_killed_with_its_memory_leaves_nothing(serving: Serving, client: Client) -> None:
    names_before = set(os.listdir("/dev/shm"))
    code = (
        "import sys, numpy as np, dataclasses\n"
        "from mstar_rt.client import connect\n"
        "client = connect(sys.argv[1])\n"
        "schema = dataclasses.replace(client.describe('toy').policy.schema, normalization='lab')\n"
        "robot = client.control('toy', control_hz=20, instruction='push', schema=schema, shared_memory=True, hold_s=0.05)\n"
        f"image = np.zeros(({SIZE}, {SIZE}, 3), np.uint8)\n"
        "while True:\n"
        "    robot.send({'top': image, 'wrist': image}, [0, 0, 0])\n"
        "    if robot.latest(): print('driven', flush=True)\n"
    )
    robot = subprocess.Popen([sys.executable, "-c", code, serving.address], stdout=subprocess.PIPE, text=True)
    assert robot.stdout is not None
    assert robot.stdout.readline() == "driven\n"
    robot.kill()
    robot.wait()
    robot.stdout.close()
    assert_nothing_is_held(client)
    assert set(os.listdir("/dev/shm")) <= names_before
    with control(client, shared_memory=True) as another:
        another.wait_for_first_action(30.0, IMAGES, STATE)
