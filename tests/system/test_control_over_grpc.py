"""Robot.Control over real processes: robots beside one another, workers that die, servers that stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from composite_serving import ENVIRONMENT
from control_stream import Kind, actions_of, opened
from serving import Serving, assert_nothing_is_held, serving_of, write_deployment
from toy_policy import chunk_of

from mstar_rt.protos import control_pb2 as wire

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SLOW = {"model_options": {"hold_s": {"number": 0.4}}}


def deployment() -> dict[str, Any]:
    return {
        "name": "control-test",
        "server": {"port": 0},
        "admission": {"utilisation_bound": None},  # some hold their worker up on purpose
        "models": [{"name": "toy", "family": "toy_policy:declare"}],
        "workers": [{"rank": 0, "shared_memory_mb": 16, "check_outputs": True}],
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """What it logs goes to a file."""
    folder = tmp_path_factory.mktemp("control")
    with serving_of(write_deployment(folder, deployment()), ENVIRONMENT, folder / "log") as serving:
        yield serving


@pytest.fixture
def channel(served: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address) as opened_channel:
        yield opened_channel


@pytest.fixture(autouse=True)
def nothing_is_left(served: Serving) -> Iterator[None]:
    yield
    with served.connect() as client:
        assert_nothing_is_held(client)


def expected(value: int) -> np.ndarray:
    return chunk_of({"image_top": np.full((16, 16, 3), value, np.uint8), "state": np.full(3, value, np.float32)}, 0)


def test_an_episode(channel: grpc.Channel) -> None:
    """Chunks go on from one another, and every image counts."""
    robot = opened(channel, chunking={"mode": wire.RealTimeChunking.MODE_GUIDED})
    robot.observe(1, 20, executed_index=-1)
    first = robot.hear("chunk")
    np.testing.assert_allclose(actions_of(first), expected(20), rtol=1e-6)
    robot.observe(2, 40, executed_index=1, executed_chunk_seq=1, delay=2)
    second = actions_of(robot.hear("chunk"))
    np.testing.assert_array_equal(second[:2], actions_of(first)[2:4])
    np.testing.assert_allclose(second[2:], expected(40)[2:], rtol=1e-6)
    assert [node.name for node in first.timing.nodes] == ["act"]
    assert 0 < first.timing.nodes[0].run_us <= first.timing.runtime_us <= first.timing.total_us
    robot.close()


def test_robots_beside_one_another(served: Serving) -> None:
    """Each with its own values; every answer is that robot's own."""

    def drive(number: int) -> None:
        with grpc.insecure_channel(served.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            robot = opened(channel)
            for seq in range(1, 11):
                robot.observe(seq, 10 * number + seq % 3)
                chunk = robot.hear("chunk")
                assert chunk.answers_seq == seq
                np.testing.assert_allclose(actions_of(chunk), expected(10 * number + seq % 3), rtol=1e-6)
            robot.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(drive, range(4)))


def test_a_slow_model_holds_up_no_opening(channel: grpc.Channel) -> None:
    """A's chunk takes 400 ms; meanwhile B opens, ten times."""
    slow = opened(channel, **SLOW)
    slow.observe(1)
    took = []
    for _ in range(10):
        began = time.monotonic()
        opened(channel).close()
        took.append(time.monotonic() - began)
    assert slow.hear("chunk").timing.nodes[0].run_us > 400_000
    assert min(took) < 0.02


def test_a_model_that_raises_fails_the_observation_and_tells_no_path(channel: grpc.Channel) -> None:
    robot = opened(channel, model_options={"broken": {"flag": True}})
    for seq in (1, 2):
        robot.observe(seq)
        detail = robot.hear_event(Kind.KIND_FAILED, seq).detail
        assert detail.code == "INTERNAL"
        assert "node 'act'" in detail.message
        assert "/" not in detail.message
    robot.close()


def test_a_reset_takes_back_what_runs(served: Serving, channel: grpc.Channel) -> None:
    robot = opened(channel, **SLOW)
    robot.observe(1)
    robot.say(reset=wire.ResetEpisode(epoch=1))
    robot.hear_event(Kind.KIND_DROPPED_EPOCH, 1)
    robot.hear_event(Kind.KIND_RESET_DONE)
    robot.observe(2, 3, epoch=1)
    chunk = robot.hear("chunk")
    assert (chunk.answers_seq, chunk.epoch) == (2, 1)
    robot.close()


def test_a_robot_that_vanishes_leaves_nothing(channel: grpc.Channel) -> None:
    robot = opened(channel, **SLOW)
    robot.observe(1)
    robot.call.cancel()


def test_a_worker_that_is_killed_mid_chunk(served: Serving, channel: grpc.Channel) -> None:
    """The robot is told to hold, and its newest observation is answered by the worker that comes back."""
    robot = opened(channel, **SLOW)
    robot.observe(1)
    robot.say(heartbeat=wire.Heartbeat())
    robot.hear("heartbeat")
    os.kill(served.worker_pids()[0], signal.SIGKILL)
    event = robot.hear_event(Kind.KIND_RECOVERING, 1)
    assert (event.detail.code, event.detail.retryable) == ("UNAVAILABLE", True)
    robot.observe(2, 7)
    assert robot.hear_event(Kind.KIND_DROPPED_STALE, 1).replaced_by == 2
    chunk = robot.hear("chunk")
    assert chunk.answers_seq == 2
    np.testing.assert_allclose(actions_of(chunk), expected(7), rtol=1e-6)
    robot.close()
