"""A whole deployment in this process, with a worker that is scripted here: ends, drains, crashes, kills."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "models"))

from mstar_rt import launch, supervision
from mstar_rt.client import connect_async
from mstar_rt.config import DeploymentConfig, WorkerConfig, parse_deployment
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition, Internal, InvalidArgument, MstarError, Unavailable
from mstar_rt.launch import Deployment, running_deployment, serve
from mstar_rt.message import CancelRequest, Message, Release, Shutdown, StartWalk, WalkDone, WalkFailed, WorkerReady
from mstar_rt.transport import ZmqMesh

pytestmark = pytest.mark.timeout(60)
X = {"x": np.zeros(8, np.float32)}

news = asyncio.Event()
"""Something happened; of the event loop of the test that runs."""

said: list[str] = []
"""What `serve` has printed."""


class ScriptedWorker:
    """One life of rank 0: see supervision.Process. It finishes every walk, except while `holds` or `fails_with`, or
    `dies` of it; one that `loads` says and hears nothing."""

    lives: ClassVar[list[ScriptedWorker]] = []
    loads = False
    holds = False
    dies = False
    fails_with: MstarError | None = None
    num_pids = 0

    def __init__(self, directory: Path, models: tuple[str, ...]) -> None:
        ScriptedWorker.num_pids += 1
        self.pid = 10**7 + ScriptedWorker.num_pids  # no process has it
        self.seen: list[Message] = []
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._mesh = ZmqMesh.join(directory)
        self._endpoint = self._mesh.endpoint("worker/0")
        if not self.loads:
            self._endpoint.send("conductor", WorkerReady(0, self.pid, list(models), 1.0))
        self._running = asyncio.create_task(self._run())
        self.lives.append(self)
        news.set()

    async def _run(self) -> None:
        while not self._status.done() and not self.loads:
            for envelope in await self._endpoint.receive_async():
                message = envelope.message
                self.seen.append(message)
                news.set()
                if isinstance(message, StartWalk):
                    self._walk(message)
                elif isinstance(message, Shutdown):
                    self.end(0)

    def _walk(self, start: StartWalk) -> None:
        for ref in start.inputs.values():
            if ref.segment is not None:
                self._endpoint.send(ref.segment.owner, Release("worker/0", [ref.segment.block_id]))
        if self.dies:
            self.end(-11)
        elif self.fails_with is not None:
            error = self.fails_with
            self._endpoint.send("conductor", WalkFailed(start.request_id, start.walk_id, 0, error.code, str(error)))
        elif not self.holds:
            self.finish(start)

    def finish(self, start: StartWalk) -> None:
        self._endpoint.send("conductor", WalkDone(start.request_id, start.walk_id, 0, 0, {}, {}, {}))

    def end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)
            self._running.cancel()
            self._mesh.close()

    def kill(self) -> None:
        self.end(-9)

    async def ended(self) -> int:
        return await asyncio.shield(self._status)

    def said(self) -> str:
        return ""


async def start_scripted(
    config: DeploymentConfig, worker: WorkerConfig, directory: Path, models: tuple[str, ...]
) -> ScriptedWorker:
    return ScriptedWorker(directory, models)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(line: str, flush: bool) -> None:
        said.append(line)
        news.set()

    said.clear()
    monkeypatch.setitem(globals(), "news", asyncio.Event())
    monkeypatch.setattr(launch, "print", say, raising=False)
    monkeypatch.setattr(launch, "start_worker", start_scripted)
    monkeypatch.setattr(launch, "CHECK_EVERY_S", 0.005)
    monkeypatch.setattr(supervision, "FIRST_RESTART_DELAY_S", 0.005)
    for name, value in {"lives": [], "loads": False, "holds": False, "dies": False, "fails_with": None}.items():
        monkeypatch.setattr(ScriptedWorker, name, value)


def config(**server: Any) -> DeploymentConfig:
    return parse_deployment(
        {
            "name": "test",
            "server": {"port": 0, **server},
            "models": [{"name": "toy", "family": "toy_model:declare"}],
            "workers": [{"rank": 0, "silence_timeout_s": 3600}],  # scripted ones send no heartbeats
            "warmup_timeout_s": 20,
        }
    )


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with running_deployment(config()) as running:
        await running.wait_until_serving()
        yield running


async def until(condition: Callable[[], Any]) -> None:
    """Looked at whenever the worker receives something or the server prints something."""
    async with asyncio.timeout(20):
        while not condition():
            news.clear()
            await news.wait()


@contextlib.asynccontextmanager
async def a_held_request(address: str) -> AsyncIterator[tuple[asyncio.Task[Any], StartWalk]]:
    """A client's call that the worker has and does not finish by itself."""
    ScriptedWorker.holds = True
    worker = ScriptedWorker.lives[-1]
    known = len(worker.seen)
    async with connect_async(address) as client:
        call = asyncio.create_task(client.run("toy", "count", X).collect())
        await until(lambda: any(isinstance(message, StartWalk) for message in worker.seen[known:]))
        (start,) = (message for message in worker.seen[known:] if isinstance(message, StartWalk))
        ScriptedWorker.holds = False
        yield call, start
        await asyncio.gather(call, return_exceptions=True)


async def run_once(address: str) -> None:
    async with connect_async(address) as client:
        await client.run("toy", "count", X).collect()


async def test_a_lost_worker_fails_its_requests_at_once_and_comes_back(deployment: Deployment) -> None:
    async with a_held_request(deployment.address) as (call, _):
        began_s = time.monotonic()
        ScriptedWorker.lives[-1].end(-9)
        with pytest.raises(Unavailable, match=r"worker of rank 0 ended with status -9 \(SIGKILL\); try again in 1 s"):
            await call
        assert time.monotonic() - began_s < 1.0
    await deployment.wait_until_serving()
    await run_once(deployment.address)
    assert len(ScriptedWorker.lives) == 2
    assert deployment.workers == {0: ScriptedWorker.lives[1]}


async def test_a_worker_that_hangs_is_killed_with_the_reason(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_held_request(deployment.address) as (call, _):
        found = [[(0, "a step of node 'add' took over 60 s")]]
        monkeypatch.setattr(deployment.conductor, "overdue", lambda now_ns: found.pop() if found else [])
        with pytest.raises(Unavailable, match="rank 0 was killed: a step of node 'add' took over 60 s; try again"):
            await call
    await deployment.wait_until_serving()
    await run_once(deployment.address)


@pytest.mark.parametrize("part", ["conductor", "dispatcher"])
async def test_a_crash_of_our_own_fails_everything_and_ends_the_deployment(
    deployment: Deployment, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async with a_held_request(deployment.address) as (call, start):
        if part == "conductor":
            monkeypatch.setattr(deployment.conductor, "handle", broken)
        else:
            monkeypatch.setattr(deployment.dispatcher, "_receive", broken)
            monkeypatch.setattr(deployment.dispatcher, "_drop", broken)
        ScriptedWorker.lives[-1].finish(start)
        with pytest.raises(Internal if part == "conductor" else Unavailable):
            await call
        error = await asyncio.wait_for(asyncio.shield(deployment.failure), 5)
        assert isinstance(error, Internal)
        assert str(error).startswith(f"the {part} failed (ZeroDivisionError)")
        with pytest.raises(Unavailable, match="takes nothing new"):
            await run_once(deployment.address)
    assert "ZeroDivisionError" in caplog.text


async def test_a_first_warm_up_that_fails_ends_the_start_with_its_sentence() -> None:
    ScriptedWorker.fails_with = InvalidArgument("numbers are too small")
    with pytest.raises(InvalidArgument, match=r"^warm-up of model 'toy', task 'count': numbers are too small$"):
        await serve(config())


async def test_workers_that_die_of_their_warm_up_end_the_start() -> None:
    ScriptedWorker.dies = True
    with pytest.raises(FailedPrecondition, match=r"status -11 \(SIGSEGV\) \(3 in a row, .* and nothing was served yet"):
        await serve(config())
    assert len(ScriptedWorker.lives) == 3


async def test_once_it_has_served_there_is_always_another_one(deployment: Deployment) -> None:
    for number in range(1, 6):
        await until(lambda number=number: len(ScriptedWorker.lives) == number)
        ScriptedWorker.lives[-1].end(-11)
    await until(lambda: len(ScriptedWorker.lives) == 6)
    await deployment.wait_until_serving()
    assert not deployment.failure.done()
    assert "(5 in a row, each within 60 s)" in deployment.supervisors[0].last_end


async def test_a_later_one_leaves_the_model_not_serving(deployment: Deployment) -> None:
    ScriptedWorker.fails_with = InvalidArgument("numbers are too small")
    ScriptedWorker.lives[-1].end(-9)
    availability = deployment.dispatcher.availability
    async with asyncio.timeout(20), availability._news:
        await availability._news.wait_for(lambda: "too small" in availability.states["toy"].reason)
    assert not deployment.failure.done()
    with pytest.raises(Unavailable, match="'toy' is not serving: warm-up of model 'toy', task 'count': numbers are"):
        await run_once(deployment.address)


@contextlib.asynccontextmanager
async def a_server(**server: Any) -> AsyncIterator[tuple[asyncio.Task[None], str]]:
    """`mstar-rt serve`, and where it listens."""
    serving = asyncio.create_task(serve(config(**server)))
    await until(lambda: said)
    yield serving, said[0].split()[-1]
    await asyncio.wait_for(serving, 20)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def test_sigterm_lets_running_requests_finish() -> None:
    async with a_server() as (serving, address), a_held_request(address) as (call, start):
        terminate()
        await until(lambda: "lets 1 request(s) finish, for up to 10 s" in said[-1])
        with pytest.raises(Unavailable, match="is draining"):
            await run_once(address)
        assert not serving.done()
        ScriptedWorker.lives[-1].finish(start)
        assert await call == []
    *seen, last = ScriptedWorker.lives[-1].seen
    assert isinstance(last, Shutdown)
    assert not any(isinstance(message, CancelRequest) for message in seen)


async def test_what_does_not_finish_in_time_is_told() -> None:
    async with a_server(drain_timeout_s=0.05) as (_, address), a_held_request(address) as (call, _):
        terminate()
        with pytest.raises(Unavailable, match=r"is draining .*try again in 5 s") as failure:
            await call
        assert failure.value.retry_after_s == 5.0
    assert "lets 1 request(s) finish, for up to 0.05 s" in said[-1]


async def test_a_worker_that_still_loads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "STOP_TIMEOUT_S", 3600.0)
    ScriptedWorker.loads = True
    serving = asyncio.create_task(serve(config()))
    await until(lambda: ScriptedWorker.lives)
    terminate()
    async with asyncio.timeout(20):
        await serving
    assert await ScriptedWorker.lives[0].ended() == -9
    assert len(ScriptedWorker.lives) == 1


async def test_a_refusal_says_when_the_worker_is_started_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment.supervisors[0], "starts_in_s", lambda: 3.9)
    async with a_held_request(deployment.address) as (call, _):
        ScriptedWorker.loads = True
        ScriptedWorker.lives[-1].end(-9)
        with pytest.raises(Unavailable, match="try again in 1 s"):
            await call
    with pytest.raises(Unavailable, match=r"is not serving: .*SIGKILL.*; try again in 3\.9 s") as refusal:
        await run_once(deployment.address)
    assert refusal.value.retry_after_s == pytest.approx(3.9)


async def test_its_own_warm_up_is_no_request_that_a_server_lets_finish() -> None:
    ScriptedWorker.holds = True
    serving = asyncio.create_task(serve(config()))
    await until(lambda: any(isinstance(message, StartWalk) for life in ScriptedWorker.lives for message in life.seen))
    terminate()
    async with asyncio.timeout(20):
        await serving
    assert not said


async def test_a_second_signal_stops_at_once() -> None:
    async with a_server(drain_timeout_s=3600) as (serving, address), a_held_request(address) as (call, _):
        terminate()
        await until(lambda: "request(s) finish" in said[-1])
        assert not serving.done()
        terminate()
        with pytest.raises(MstarError):
            await call


async def test_a_crash_while_serving_ends_the_process_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async def crash() -> None:
        async with a_server() as (_, address), a_held_request(address) as (call, start):
            monkeypatch.setattr(launch.Conductor, "handle", broken)
            ScriptedWorker.lives[-1].finish(start)
            with pytest.raises(Internal, match="the conductor failed"):
                await call

    with pytest.raises(Internal, match=r"the conductor failed \(ZeroDivisionError\)"):
        await crash()


def test_workers_ask_for_what_they_would_else_inherit_from_the_server() -> None:
    asked = dataclasses.replace(config(process={"cpus": [0]}), workers=(WorkerConfig(0), WorkerConfig(1)))
    filled = launch._permitted(asked)
    assert [worker.process.cpus for worker in filled.workers] == [tuple(sorted(os.sched_getaffinity(0)))] * 2
    assert filled.server == asked.server
    assert launch._permitted(config()) == config()


async def test_what_the_kernel_refuses_ends_the_start() -> None:
    with pytest.raises(FailedPrecondition, match=r"^server\.process: cpus: .* cannot run on 4000"):
        await serve(config(process={"cpus": [4000]}))
    refused = WorkerConfig(1, process=ProcessConfig(cpus=(4000,)))
    with pytest.raises(FailedPrecondition, match=r"^process of rank 1: cpus: .* cannot run on 4000"):
        await serve(dataclasses.replace(config(), workers=(WorkerConfig(0), refused)))
    assert not ScriptedWorker.lives
