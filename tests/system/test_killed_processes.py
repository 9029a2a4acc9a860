"""Processes that die or stop in the middle of a walk: who is concerned gets one answer in bounded time, others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from composite_serving import Values, ask, ask_in, assert_equal, image
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving import Serving, assert_nothing_is_held, is_alive

from mstar_rt.client import Client
from mstar_rt.errors import Unavailable

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
DEATH_IS_KNOWN_WITHIN_S = 3.0
STALL_IS_KNOWN_WITHIN_S = 12.0
"""A worker is given up after 3 s, here."""

DEATHS = {
    0: ("speak", {"fault_node": "codec", "fault_at": 2}),
    1: ("denoise", {"fault_node": "cond", "fault_at": 3}),
    2: ("generate", {"fault_node": "decode", "fault_at": 5}),
}
HISTORY_RANK = 1
"""What a session heard lies there; it outlives the others."""

CANVAS = {"canvas": np.ones(1, np.float32)}

STALLS = {
    "stopped by a signal": ("generate", {"fault": "stop", "fault_node": "decode", "fault_at": 3}),
    "hanging in a node": ("speak", {"fault": "hang", "fault_node": "encode"}),
}


@pytest.fixture
def health(composite_serving: Serving) -> Iterator[Any]:
    with grpc.insecure_channel(composite_serving.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def watch(health: Any, model: str) -> Any:
    """States of the model as they change, from the moment at which it serves."""
    states = health.Watch(health_pb2.HealthCheckRequest(service=model), timeout=60)
    while next(states).status != SERVING:
        pass
    return states


def fails_as_unavailable(client: Client, task: str, options: dict[str, Any], within_s: float) -> str:
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        ask(client, "apart", task, {"image": image(1, 6)}, steps=12, **options)
    assert time.monotonic() - began < within_s
    return str(caught.value)


@pytest.mark.parametrize("rank", DEATHS)
def test_a_worker_that_is_killed_mid_walk(
    composite_serving: Serving, composite_client: Client, health: Any, rank: int
) -> None:
    client = composite_client
    states = watch(health, "apart")
    before, pids = set(os.listdir("/dev/shm")), composite_serving.worker_pids()
    tensors, (task, where) = {"image": image(1, 6)}, DEATHS[rank]
    want = ask(client, "apart", task, tensors, steps=12)
    for through_shared_memory in ("paint", "shrink"):
        ask(client, "apart", through_shared_memory, CANVAS, steps=2, picture_kb=1024)
    with client.task_session("one") as undisturbed:
        heard = [ask_in(undisturbed, "listen", tensors) for _ in range(2)]

    def bystander(number: int) -> Values | Unavailable:
        """On the same model, or a long one on `one`, which is on rank 0."""
        slow = {"fault": "slow", "fault_node": "decode", "slow_ms": 15.0}
        try:
            if number % 2:
                return ask(client, "one", "generate", tensors, steps=40, **slow)
            return ask(client, "apart", "generate", tensors, steps=40)
        except Unavailable as error:
            return error

    with ThreadPoolExecutor(6) as pool, client.task_session("apart") as session:
        assert_equal(ask_in(session, "listen", tensors), heard[0], 1e-5)
        bystanders = [pool.submit(bystander, number) for number in range(6)]
        said = fails_as_unavailable(client, task, {"fault": "die", **where}, DEATH_IS_KNOWN_WITHIN_S)
        answers = [asked.result() for asked in bystanders]
        assert next(states).status == NOT_SERVING
        assert next(states).status == SERVING
        states.cancel()
        if rank == HISTORY_RANK:
            with pytest.raises(Unavailable, match="open a new session"):
                ask_in(session, "listen", tensors)
        else:
            assert_equal(ask_in(session, "listen", tensors), heard[1], 1e-5)
    assert f"rank {rank}" in said
    assert "try again" in said or "retry" in said
    for answer in answers[1::2]:
        assert isinstance(answer, Unavailable) == (rank == 0), answer
    now = composite_serving.worker_pids()
    assert {other for other in pids if now[other] != pids[other]} == {rank}
    assert_equal(ask(client, "apart", task, tensors, steps=12), want)
    assert_nothing_is_held(client)
    assert composite_serving.num_arenas_of_the_dead() == 0
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize("how", STALLS)
def test_a_worker_that_makes_no_progress_is_killed_and_started_again(
    composite_serving: Serving, composite_client: Client, health: Any, how: str
) -> None:
    states = watch(health, "apart")
    pids, (task, options) = composite_serving.worker_pids(), STALLS[how]
    fails_as_unavailable(composite_client, task, options, STALL_IS_KNOWN_WITHIN_S)
    assert next(states).status == NOT_SERVING
    assert next(states).status == SERVING
    states.cancel()
    now = composite_serving.worker_pids()
    assert [rank for rank in pids if pids[rank] != now[rank]] == [2 if task == "generate" else 0]
    ask(composite_client, "apart", task, {"image": image(1, 6)}, steps=12)
    assert_nothing_is_held(composite_client)


def test_all_workers_killed_at_once_come_back(
    composite_serving: Serving, composite_client: Client, health: Any
) -> None:
    states = {model: watch(health, model) for model in ("one", "apart", "small")}
    pids = composite_serving.worker_pids()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for watched in states.values():
        assert next(watched).status == NOT_SERVING
        assert next(watched).status == SERVING
        watched.cancel()
    assert not any(is_alive(pid) for pid in pids.values())
    for model in states:
        ask(composite_client, model, "speak", {"image": image(1, 6)}, steps=3)
    assert_nothing_is_held(composite_client)
