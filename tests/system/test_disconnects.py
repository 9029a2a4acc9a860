"""Who goes away in the middle of a plan: a client that is killed, a client that cancels, a worker that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving import MAX_POLLS, Serving, assert_nothing_is_held, held, steps_total

from mstar_rt.client import Client, PlanImprovement
from mstar_rt.errors import Cancelled, DeadlineExceeded, Unavailable

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

RNG = np.random.default_rng(6)
FRAMES, GOAL = (
    RNG.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8),
    RNG.integers(0, 256, (1, 64, 64, 3), dtype=np.uint8),
)
LONG = {"num_samples": 200, "num_elites": 8, "rollout_horizon": 4, "num_iterations": 100}
STEPS_OF_LONG = 100 * 7
SHORT = {"num_samples": 8, "num_elites": 4, "rollout_horizon": 1, "num_iterations": 1}
FEW_STEPS = STEPS_OF_LONG // 2
"""What may run while the news of an end travels on a busy machine; a plan that was not stopped runs hundreds."""

PLANNING_CLIENT = """
import sys
import numpy as np
from mstar_rt.client import connect
address, how = sys.argv[1:]
frames = np.random.default_rng(6).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
options = dict(num_samples=200, num_elites=8, rollout_horizon=4, num_iterations=100)
client = connect(address)
if how == "plan":
    stream = client.plan_stream("tiny", frames[:1], frames[2:], np.zeros(7), **options)
else:
    session = client.session("tiny")
    session.set_goal(frames[2:])
    session.observe(frames[:2], np.zeros(7), context_actions=np.zeros((1, 7)))
    stream = session.plan_stream(**options)
for improvement in stream:
    print("improved", flush=True)
"""


def plan_once(client: Client, model: str = "tiny") -> None:
    assert client.plan(model, FRAMES[:1], GOAL, np.zeros(7), **SHORT).actions.shape == (1, 7)


@pytest.mark.parametrize("how", ["plan", "session"])
def test_a_killed_client_leaves_nothing(serving: Serving, client: Client, how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PLANNING_CLIENT, serving.address, how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "improved\n"
        assert any("pages_held" in name for name in held(client))
        before = steps_total(client)
    finally:
        process.kill()
        process.communicate()
    assert_nothing_is_held(client)
    after = steps_total(client)
    assert after - before < FEW_STEPS < STEPS_OF_LONG
    plan_once(client)
    assert steps_total(client) - after < FEW_STEPS


@pytest.mark.parametrize("how", ["plan", "session", "rollout"])
def test_a_cancelled_stream_stops_within_a_step(client: Client, how: str) -> None:
    with contextlib.ExitStack() as stack:
        if how == "session":
            session = stack.enter_context(client.session("tiny"))
            session.set_goal(GOAL)
            session.observe(FRAMES, np.zeros(7), context_actions=np.zeros((1, 7)))
            stream: Any = session.plan_stream(**LONG)
        elif how == "plan":
            stream = client.plan_stream("tiny", FRAMES[:1], GOAL, np.zeros(7), **LONG)
        else:
            call = client.rollout("tiny", FRAMES[:1], np.zeros((110, 32, 7)), np.zeros(7))
            stream = iter(call)
        next(stream)
        before = steps_total(client)
        if how == "rollout":
            call.cancel()
            with pytest.raises(Cancelled):
                list(stream)
        else:
            stream.close()
        for _ in range(MAX_POLLS):
            left = {name for name in held(client) if how != "session" or not name.endswith((" sessions", " scopes"))}
            if not left:
                break
        assert not left
        assert steps_total(client) - before < FEW_STEPS
        if how == "session":
            assert session.plan(**SHORT).actions.shape == (1, 7)
    plan_once(client)
    assert_nothing_is_held(client)


def test_a_call_whose_time_is_up_leaves_nothing(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        list(client.rollout("tiny", FRAMES[:1], np.zeros((110, 32, 7)), np.zeros(7), timeout_s=0.1))
    assert_nothing_is_held(client)
    plan_once(client)


@pytest.fixture
def health(serving: Serving) -> Iterator[Any]:
    with grpc.insecure_channel(serving.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def test_a_killed_worker_is_noticed_at_once_and_comes_back(serving: Serving, client: Client, health: Any) -> None:
    status = health_pb2.HealthCheckResponse
    watch = health.Watch(health_pb2.HealthCheckRequest(service="small"), timeout=60)
    assert next(watch).status == status.SERVING
    with client.session("small") as lost, client.session("tiny") as kept:
        for session in (lost, kept):
            session.set_goal(GOAL)
            session.observe(FRAMES, np.zeros(7), context_actions=np.zeros((1, 7)))
        pid = serving.worker_pids()[1]
        options = {**LONG, "num_samples": 25, "rollout_horizon": 3}
        stream = client.plan_stream("small", FRAMES[:1], GOAL, np.zeros(7), **options)
        assert isinstance(next(stream), PlanImprovement)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"worker of rank 1 ended with status -9 \(SIGKILL\); try again in 1 s"):
            list(stream)
        assert next(watch).status == status.NOT_SERVING
        with pytest.raises(Unavailable, match="'small' is not serving: the worker of rank 1 ended with status -9"):
            client.plan("small", FRAMES[:1], GOAL, np.zeros(7), **SHORT)
        (down,) = (model for model in client.models() if model.name == "small")
        assert not down.serving
        assert "rank 1" in down.reason
        assert kept.plan(**SHORT).actions.shape == (1, 7)
        assert next(watch).status == status.SERVING
        watch.cancel()
        assert serving.worker_pids()[1] != pid
        plan_once(client, "small")
        with pytest.raises(Unavailable, match="lost with its worker; open a new session and set the goal again"):
            lost.plan(**SHORT)
        with client.session("small") as fresh:
            fresh.set_goal(GOAL)
            fresh.observe(FRAMES[:1], np.zeros(7))
            assert fresh.plan(**SHORT).actions.shape == (1, 7)
    assert_nothing_is_held(client)
