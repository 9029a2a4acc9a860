"""One of two replicas dies under a steady stream of requests: those on it are told, others never notice."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from composite_serving import start_composite
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving import Serving, assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import Unavailable

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

NUM_CLIENTS = 6
STEPS, MAX_STEPS = 20, 200
WITHIN_S = 60.0
DEPLOYMENT = {
    "name": "replicas-test",
    "server": {"port": 0},
    "workers": [{"rank": rank, "check_outputs": True} for rank in range(3)],
    "placement": [{"model": "m", "ranks": [1, 2]}, {"model": "m", "nodes": ["open"], "ranks": [0]}],
}


@dataclass
class Asked:
    """A request, who worked for it, how much these had done before, and what it failed with."""

    x: int
    pids: set[int] = field(default_factory=set)
    num_before: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    error: Unavailable | None = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def replicas(folder: Path) -> Iterator[Serving]:
    model = {"name": "m", "family": "replicated_model:declare", "options": {"broken_if": str(folder / "broken")}}
    with open(folder / "log", "w+") as log:
        running = start_composite(folder, {**DEPLOYMENT, "models": [model]}, log=log)
        try:
            yield running.wait()
        finally:
            running.end()
        log.seek(0)
        assert running.process.returncode == 0, log.read()


def work(client: Client, x: int, steps: int = STEPS, on_pid: Any = None) -> Asked:
    """One request; `on_pid` is told who runs it as soon as that is known."""
    asked = Asked(x)
    try:
        for output in client.run("m", "work", {"x": np.array([x])}, steps=steps, timeout_s=30.0):
            value = int(output.value[0])
            if output.name == "pid":
                if on_pid is not None and not asked.pids:
                    on_pid(value)
                asked.pids.add(value)
            elif output.name == "num_before":
                asked.num_before.append(value)
            else:
                asked.values.append(value)
    except Unavailable as error:
        asked.error = error
    return asked


class SteadyStream:
    """Clients that ask one request after another, failed or not, until they are told to stop."""

    def __init__(self, client: Client) -> None:
        self.asked: list[Asked] = []
        self._client = client
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._clients = [self._pool.submit(self._run, 1000 * number) for number in range(NUM_CLIENTS)]

    def _run(self, x: int) -> None:
        while not self._stop.is_set():
            self.asked.append(work(self._client, x))
            x += 1

    def wait_for(self, pids: set[int]) -> None:
        """Until each of these has answered."""
        end = time.monotonic() + WITHIN_S
        while not pids <= {pid for asked in self.asked for pid in asked.pids}:
            assert time.monotonic() < end, "they are not used"
            self._stop.wait(0.05)

    def stop(self) -> list[Asked]:
        self._stop.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()
        return self.asked


class HealthWatch:
    """All that the health service says of the model."""

    def __init__(self, address: str) -> None:
        self.states: list[int] = []
        self._channel = grpc.insecure_channel(address)
        stub = health_pb2_grpc.HealthStub(self._channel)
        self._watched = stub.Watch(health_pb2.HealthCheckRequest(service="m"), timeout=100)
        self.states.append(next(self._watched).status)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # it is cancelled
            self.states.extend(state.status for state in self._watched)

    def stop(self) -> list[int]:
        self._watched.cancel()
        self._thread.join()
        self._channel.close()
        return self.states


def wait_for_ranks(client: Client, serving: int, ready: int = 3) -> None:
    """Until so many ranks are ready, and so many of them serve."""
    end = time.monotonic() + WITHIN_S
    while True:
        stats = client.stats().processes["conductor"]
        if (stats["ranks_serving/m"], stats["ranks_ready"]) == (serving, ready):
            return
        assert time.monotonic() < end, stats
        time.sleep(0.05)


def wait_for_new_worker(serving: Serving, rank: int, old: int) -> int:
    end = time.monotonic() + WITHIN_S
    while (pid := serving.worker_pids().get(rank, old)) == old:
        assert time.monotonic() < end, "it is not started again"
        time.sleep(0.05)
    return pid


def wait_for_log(folder: Path, words: str) -> list[str]:
    """The lines that have them, once there is one."""
    end = time.monotonic() + WITHIN_S
    while not (found := [line for line in (folder / "log").read_text().splitlines() if words in line]):
        assert time.monotonic() < end, "that was not logged"
        time.sleep(0.05)
    return found


def open_sessions(client: Client, count: int) -> list[tuple[Any, int]]:
    """Each keeps its number, with the process where that is."""
    sessions = []
    for number in range(count):
        session = client.task_session("m")
        session.run("keep", {"x": np.array([number])})
        sessions.append((session, recalled(session, number)))
    return sessions


def recalled(session: Any, number: int) -> int:
    """Who gave it back."""
    values = {output.name: int(output.value[0]) for output in session.run("recall", {})}
    assert values["recalled"] == number
    return values["pid"]


def test_others_never_notice_the_death_of_a_replica(replicas: Serving) -> None:
    pids = replicas.worker_pids()
    with replicas.connect() as client:
        health, sessions = HealthWatch(replicas.address), open_sessions(client, 4)
        assert {pid for _, pid in sessions} == {pids[1], pids[2]}
        stream = SteadyStream(client)
        stream.wait_for({pids[1], pids[2]})

        killed: list[int] = []

        def kill(pid: int) -> None:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

        victim = work(client, -1000, steps=MAX_STEPS, on_pid=kill)
        rank = next(rank for rank, pid in pids.items() if pid == killed[0])
        new_pid = wait_for_new_worker(replicas, rank, killed[0])
        stream.wait_for({new_pid})
        asked = stream.stop()
        assert health.stop() == [health_pb2.HealthCheckResponse.SERVING]

        assert victim.error is not None
        failed = [each for each in asked if each.error is not None]
        for each in [victim, *failed]:
            assert each.pids <= {killed[0]}, "it was not there"
            assert f"rank {rank}" in str(each.error) or f"worker/{rank}" in str(each.error), each.error
        assert len(failed) <= NUM_CLIENTS, "everyone can have had one there"
        for each in asked:
            if each.error is None:
                assert each.values == [each.x + 1 + step for step in range(STEPS)]
                assert len(each.pids) == 1
            assert all(num > 0 for num in each.num_before), "nobody meets a process that has not warmed up"
        now = replicas.worker_pids()
        assert {other for other in pids if now[other] != pids[other]} == {rank}

        for number, (session, pid) in enumerate(sessions):
            if pid == killed[0]:
                with pytest.raises(Unavailable, match="open a new session"):
                    recalled(session, number)
            else:
                assert recalled(session, number) == pid
        more = open_sessions(client, 2)
        assert new_pid in {pid for _, pid in more}, "that with the fewest sessions"
        for session, _ in [*sessions, *more]:
            session.close()
        assert client.stats().processes["conductor"]["ranks_serving/m"] == 3.0
        assert_nothing_is_held(client)


def test_a_replica_that_cannot_warm_up_again_is_left_out(replicas: Serving, folder: Path) -> None:
    pids = replicas.worker_pids()
    with replicas.connect() as client:
        health = HealthWatch(replicas.address)
        (folder / "broken").touch()
        os.kill(pids[2], signal.SIGKILL)
        wait_for_new_worker(replicas, 2, pids[2])
        (sentence,) = wait_for_log(folder, "model m does not use rank 2")
        assert "broken from the start" in sentence
        wait_for_ranks(client, serving=2)
        for x in range(4):
            asked = work(client, x)
            assert (asked.error, asked.pids) == (None, {pids[1]})
        (folder / "broken").unlink()
        broken = replicas.worker_pids()[2]
        os.kill(broken, signal.SIGKILL)
        wait_for_new_worker(replicas, 2, broken)
        wait_for_ranks(client, serving=3)
        assert health.stop() == [health_pb2.HealthCheckResponse.SERVING]
        assert_nothing_is_held(client)
