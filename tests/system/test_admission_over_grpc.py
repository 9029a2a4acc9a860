"""Robots are let in until the worker is full; who was let in keeps being served, and who leaves makes room."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from composite_serving import ENVIRONMENT
from control_stream import Robot, opened
from serving import Serving, assert_nothing_is_held, serving_of, write_deployment

from mstar_rt.protos import control_pb2 as wire

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

HZ = 4.0
PERIOD_S = 1 / HZ
THIRD: dict[str, Any] = {"control_hz": HZ, "model_options": {"hold_s": {"number": 0.07}}}
"""A tick takes 70 ms, and what a busy machine adds: a robot needs at least 28 % of the worker, so that two fit at most."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("admission")
    data = {
        "name": "admission-test",
        "server": {"port": 0},
        "models": [{"name": "toy", "family": "toy_policy:declare"}],
        "admission": {"max_sessions_per_client": 4},
    }
    with serving_of(write_deployment(folder, data), ENVIRONMENT, folder / "log") as serving:
        yield serving


@pytest.fixture
def channel(served: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address) as opened_channel:
        yield opened_channel
    with served.connect() as client:
        assert_nothing_is_held(client)
        assert client.stats().processes["conductor"]["admitted_utilisation/0"] == 0


def drive(robots: list[Robot], seq: int, num: int = 4) -> int:
    """One observation of each robot a period, with a chunk for each; returns the next one's seq."""
    next_s = time.monotonic()
    for seq in range(seq, seq + num):  # noqa: B020
        for robot in robots:
            robot.observe(seq)
        for robot in robots:
            chunk = robot.hear("chunk")
            assert chunk.answers_seq == seq
        next_s += PERIOD_S
        time.sleep(max(0.0, next_s - time.monotonic()))
    return seq + 1


def hear_chunk(robot: Robot, seq: int) -> None:
    """Whatever it says before."""
    while not (isinstance(heard := robot.hear(), wire.ActionChunk) and heard.answers_seq == seq):
        pass


def refused(channel: grpc.Channel, **opening: Any) -> str:
    error = Robot(channel, **{**THIRD, **opening}).ends_with()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return str(error.details())


def admits(robot: Robot) -> bool:
    try:
        robot.hear("opened")
    except grpc.RpcError:
        return False
    return True


def admitted(served: Serving) -> tuple[float, float]:
    """How many robots are, and how much of the worker they need."""
    with served.connect() as client:
        stats = client.stats().processes["conductor"]
    return stats["control_sessions"], stats["admitted_utilisation/0"]


def test_robots_until_one_is_refused(served: Serving, channel: grpc.Channel) -> None:
    robots = [opened(channel, **THIRD)]
    seq = drive(robots, 1)  # from now on it is known what they cost
    while admits(another := Robot(channel, **THIRD)):
        robots.append(another)
    assert len(robots) <= 2
    said = refused(channel, control_hz=100.0)
    assert "of rank 0, this one would add " in said
    assert "at most 80.0% may be used" in said
    seq = drive(robots, seq)
    # A worker that comes back finds the same robots.
    os.kill(served.worker_pids()[0], signal.SIGKILL)
    for robot in robots:
        robot.observe(seq)
        hear_chunk(robot, seq)
    seq = drive(robots, seq + 1, num=3)
    num, used = admitted(served)
    assert num == len(robots)
    assert used >= 0.28 * num
    refused(channel, control_hz=100.0)
    # Who closes makes room at once, who vanishes does so too.
    while len(robots) > 1:
        robots.pop().close()
        assert admitted(served)[0] == len(robots)
    robots[0].call.cancel()
    while admitted(served)[0]:
        pass


def test_a_connection_may_have_so_many_sessions(channel: grpc.Channel) -> None:
    robots = [opened(channel, control_hz=0.1) for _ in range(4)]
    assert "4 sessions open" in str(Robot(channel, control_hz=0.1).ends_with().details())
    robots.pop().close()
    robots.append(opened(channel, control_hz=0.1))
    for robot in robots:
        robot.close()
