"""Whole deployments with real worker processes on loopback: start, serve, die, come back, stop, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODELS = str(Path(__file__).parents[1] / "models")
sys.path.insert(0, MODELS)

from mstar_rt.config import DeploymentConfig, parse_deployment
from mstar_rt.errors import ConfigError, FailedPrecondition, InvalidArgument, MstarError, Unavailable
from mstar_rt.launch import Deployment, running_deployment

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]


def config(**options: Any) -> DeploymentConfig:
    return parse_deployment(
        {
            "name": "test",
            "server": {"port": 0},
            "models": [{"name": "toy", "family": "toy_model:declare", "options": options}],
            "workers": [{"rank": 0, "kv_memory_mb": 1}],
            "warmup_timeout_s": 60,
        }
    )


@pytest.fixture(autouse=True)
def _models_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODELS)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with running_deployment(config()) as running:
        await running.wait_until_serving()
        yield running


async def run(
    deployment: Deployment, request_id: str, x: np.ndarray, task: str = "count", **params: Any
) -> list[np.ndarray]:
    model = deployment.models["toy"]
    checked = model.check_request(task, {"x": x}, params)
    stream = deployment.dispatcher.submit("toy", task, {"x": x}, checked, request_id=request_id, criticality="planning")
    async with stream:
        return [np.frombuffer(e.data, np.float32).reshape(e.shape) for e in await stream.collect()]


async def idle_stats(deployment: Deployment) -> dict[str, float]:
    stats = await deployment.dispatcher.collect_stats()
    assert not stats.silent
    return {f"{source}:{name}": value for source, values in stats.values.items() for name, value in values.items()}


async def assert_nothing_is_held(deployment: Deployment) -> dict[str, float]:
    """A release may still be on its way when the answer is there: ask until it has arrived, a bounded number of times."""
    held = (
        "scopes",
        "active_walks",
        "pages_held/toy/memory",
        "shared_memory_held_bytes",
        "bytes_held",
        "requests_running",
    )
    for _ in range(200):
        stats = await idle_stats(deployment)
        left = {name: value for name, value in stats.items() if name.split(":")[1] in held and value}
        if not left:
            return stats
    raise AssertionError(f"still held: {left}")


async def test_requests_of_all_sizes_are_served_and_nothing_is_held_after(deployment: Deployment) -> None:
    large = np.arange(100_000, dtype=np.float32)
    warmed_up = await assert_nothing_is_held(deployment)
    results = await asyncio.gather(
        *(run(deployment, f"r{i}", np.full(3, i, np.float32), steps=1 + i % 4) for i in range(20)),
        run(deployment, "large", large, steps=3),
        run(deployment, "two walks", np.full(3, 8, np.float32), "keep_and_count", steps=1),
        run(deployment, "paged", np.ones(4, np.float32), "remember", steps=5),
    )
    for i in range(20):
        assert [y[0] for y in results[i]] == [i + 1 + k for k in range(1 + i % 4)]
    np.testing.assert_array_equal(results[20][2], large + 3)
    assert [y[0] for y in results[21]] == [9]
    stats = await assert_nothing_is_held(deployment)
    finished = "conductor:requests_finished_total"
    assert stats[finished] - warmed_up[finished] == 23


@pytest.mark.parametrize(("how", "kind"), [("raise", MstarError), ("own_error", InvalidArgument)])
async def test_an_error_in_a_node_reaches_its_caller_only(
    deployment: Deployment, how: str, kind: type[Exception]
) -> None:
    good = asyncio.create_task(run(deployment, "good", np.zeros(2, np.float32), steps=50))
    with pytest.raises(kind):
        await run(deployment, "bad", np.zeros(2, np.float32), misbehave=how)
    assert len(await good) == 50
    assert len(await run(deployment, "next", np.zeros(2, np.float32))) == 2


async def test_a_worker_that_dies_fails_its_requests_and_comes_back(deployment: Deployment) -> None:
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(Unavailable, match="the worker of rank 0 ended with status -9"):
        await run(deployment, "r1", np.zeros(100_000, np.float32), misbehave="die")
    assert not deployment.dispatcher.serving["toy"].serving
    with pytest.raises(Unavailable, match="not serving"):
        await run(deployment, "r2", np.zeros(2, np.float32))
    await deployment.wait_until_serving()
    assert [y[0] for y in await run(deployment, "r3", np.zeros(2, np.float32))] == [1, 2]
    await assert_nothing_is_held(deployment)
    assert set(os.listdir("/dev/shm")) <= before


async def test_a_session_keeps_what_walks_persist_and_is_lost_with_its_worker(deployment: Deployment) -> None:
    session = await deployment.dispatcher.open_session("toy")

    async def in_session(request_id: str, task: str, tensors: dict[str, np.ndarray]) -> list[float]:
        stream = deployment.dispatcher.submit(
            "toy", task, tensors, {}, request_id=request_id, criticality="planning", session_id=session
        )
        async with stream:
            return [float(np.frombuffer(e.data, np.float32)[0]) for e in await stream.collect()]

    with pytest.raises(FailedPrecondition, match="run keep first"):
        await in_session("r0", "recall", {})
    await in_session("r1", "keep", {"x": np.full(2, 7, np.float32)})
    assert await in_session("r2", "recall", {}) == [7.0]
    os.kill(deployment.workers[0].pid, signal.SIGKILL)
    while deployment.dispatcher.serving["toy"].serving:
        await asyncio.sleep(0)
    await deployment.wait_until_serving()
    with pytest.raises(Unavailable, match="open a new session"):
        await in_session("r3", "recall", {})
    deployment.dispatcher.close_session(session)
    assert (await idle_stats(deployment))["conductor:sessions"] == 0


async def test_cancelling_frees_everything(deployment: Deployment) -> None:
    task = asyncio.create_task(run(deployment, "long", np.zeros(50_000, np.float32), steps=1000))
    while deployment.dispatcher.num_running == 0:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [y[0] for y in await run(deployment, "next", np.zeros(2, np.float32))] == [1, 2]
    await assert_nothing_is_held(deployment)


async def test_a_model_that_cannot_load_ends_the_start_with_its_sentence() -> None:
    async with running_deployment(config(refuse_to_load=True)) as running:
        with pytest.raises(FailedPrecondition, match="the toy model was told not to load"):
            await running.wait_until_serving()


async def test_a_bad_option_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="unknown option 'pagesize'"):
        async with running_deployment(config(pagesize=3)):
            pass


async def test_a_port_in_use_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        data = {
            "name": "test",
            "server": {"port": port},
            "models": [{"name": "toy", "family": "toy_model:declare"}],
        }
        with pytest.raises(FailedPrecondition, match=f"port {port}"):
            async with running_deployment(parse_deployment(data)):
                pass


async def test_two_deployments_side_by_side(deployment: Deployment) -> None:
    async with running_deployment(config()) as other:
        await other.wait_until_serving()
        assert other.edge.port != deployment.edge.port
        mine, theirs = await asyncio.gather(
            run(deployment, "r", np.zeros(1, np.float32)), run(other, "r", np.full(1, 5, np.float32))
        )
        assert (mine[0][0], theirs[0][0]) == (1, 6)
    assert len(await run(deployment, "after", np.zeros(1, np.float32))) == 2
