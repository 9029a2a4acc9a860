"""Several deployments of one user side by side: how they start in any order, end in every way, and leave others alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from composite_serving import (
    ENVIRONMENT,
    Values,
    ask,
    assert_equal,
    composite,
    composite_deployment,
    gathered,
    image,
    start_composite,
)
from serving import MAX_POLLS, Serving, assert_nothing_is_held, is_alive, write_deployment

from mstar_rt.client import Client
from mstar_rt.errors import MstarError, Unavailable
from mstar_rt.protos import request_pb2, task_pb2, task_pb2_grpc
from mstar_rt.protos.arrays import tensor_from_array
from mstar_rt.transport.deployment_directory import sweep_dead

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

RULES = [{"ranks": [0]}, {"nodes": ["decode", "cond"], "ranks": [1]}]
WAYS = {"killed": 20.0, "drained": 20.0, "drained too long": 0.5, "told twice": 60.0}
"""And how long each may drain, in seconds."""
STOPS_WITHIN_S = 20


class Launched:
    """A deployment of two ranks, in a temporary directory with others; its path is short enough for sockets."""

    def __init__(self, temporary: Path, config_folder: Path, way: str, drain_timeout_s: float) -> None:
        self.temporary = temporary
        data = composite_deployment(
            [composite("model", RULES, load_delay_s=1.0)], 2, server={"drain_timeout_s": drain_timeout_s}
        )
        self.serving = start_composite(config_folder, data, way.replace(" ", "_"), {"TMPDIR": str(temporary)})

    def folders(self) -> list[Path]:
        """Its own in the temporary directory."""
        return list(self.temporary.glob(f"mstar-rt-{os.getuid()}-{self.serving.process.pid}-*"))

    def begin(self, steps: int, slow_ms: float = 30.0) -> Any:
        """A walk over both ranks that has begun; returns an iterator over the rest of its outputs."""
        slow = {"fault": "slow", "fault_node": "decode", "slow_ms": slow_ms}
        outputs = iter(self.serving.connect().run("model", "speak", {"image": image(1, 6)}, steps=steps, **slow))
        next(outputs)
        return outputs


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Launched]]:
    """All at once, with workers that load at different speeds."""
    with tempfile.TemporaryDirectory(prefix="mstar-") as base:
        folder = tmp_path_factory.mktemp("deployments")
        started = {way: Launched(Path(base), folder, way, limit_s) for way, limit_s in WAYS.items()}
        try:
            for one in started.values():
                one.serving.wait()
            yield started
        finally:
            for one in started.values():
                one.serving.end()


@pytest.fixture(scope="module")
def want(launched: dict[str, Launched]) -> Values:
    """Every deployment gives this; asking it also shows that all of them came up."""
    answers = []
    for one in launched.values():
        with one.serving.connect() as client:
            answers.append(ask(client, "model", "speak", {"image": image(1, 6)}, steps=8))
    for answer in answers[1:]:
        assert_equal(answer, answers[0])
    return answers[0]


def wait_for_death(pids: list[int]) -> None:
    for _ in range(MAX_POLLS * 100):
        if not any(is_alive(pid) for pid in pids):
            return
    raise AssertionError(f"still alive: {[pid for pid in pids if is_alive(pid)]}")


def assert_nothing_is_left(one: Launched, workers: list[int], shared_memory_before: set[str]) -> None:
    assert one.folders() == []
    assert not any(is_alive(pid) for pid in workers)
    assert set(os.listdir("/dev/shm")) <= shared_memory_before


def test_killed_entirely_it_leaves_nothing_and_its_neighbours_alone(
    launched: dict[str, Launched], want: Values, composite_client: Client
) -> None:
    one, before = launched["killed"], set(os.listdir("/dev/shm"))
    workers = list(one.serving.worker_pids().values())
    assert len(workers) == 2
    own = one.begin(steps=64)
    neighbour = launched["drained"].begin(steps=40)
    one.serving.process.kill()
    one.serving.process.wait(STOPS_WITHIN_S)
    wait_for_death(workers)
    with pytest.raises(MstarError):
        list(own)
    assert set(os.listdir("/dev/shm")) <= before
    assert len([output for output in neighbour if output.name == "next_token"]) in (39, 40)
    left = one.folders()
    assert len(left) == 1
    assert sweep_dead(one.temporary) == left
    assert len(launched["drained"].folders()) == 1
    assert_equal(ask(composite_client, "apart", "speak", {"image": image(1, 6)}, steps=8), want)
    with launched["drained"].serving.connect() as client:
        assert_equal(ask(client, "model", "speak", {"image": image(1, 6)}, steps=8), want)
        assert_nothing_is_held(client)


def test_drained_it_finishes_what_runs_and_refuses_what_is_new(launched: dict[str, Launched], want: Values) -> None:
    one, before = launched["drained"], set(os.listdir("/dev/shm"))
    serving, workers = one.serving, list(one.serving.worker_pids().values())
    running = one.begin(steps=40, slow_ms=50.0)
    rest: list[Any] = []
    reader = threading.Thread(target=lambda: rest.extend(running))
    serving.process.send_signal(signal.SIGTERM)
    for pid in workers:  # as a service manager does that signals all processes of a service
        os.kill(pid, signal.SIGTERM)
    reader.start()
    detail = first_refusal(serving.address)
    assert detail.code == "UNAVAILABLE"
    assert "drain" in detail.message
    assert detail.retryable
    assert detail.retry_after_ms > 0
    reader.join(STOPS_WITHIN_S)
    assert len([output for output in rest if output.name == "next_token"]) in (39, 40)
    assert sum(len(output.value) for output in rest if output.name == "audio") in (3 * 40, 3 * 39)
    _, err = serving.process.communicate(timeout=STOPS_WITHIN_S)
    assert (serving.process.returncode, err) == (0, "")
    assert_nothing_is_left(one, workers, before)


def first_refusal(address: str) -> request_pb2.ErrorDetail:
    """Requests that are sent until one is refused: the signal may still be on its way."""
    with grpc.insecure_channel(address) as channel:
        request = task_pb2.TaskRequest(model="model", task="encode", tensors={"image": tensor_from_array(image(1, 2))})
        for _ in range(MAX_POLLS):
            call = task_pb2_grpc.TasksStub(channel).Run(request, timeout=20)
            try:
                list(call)
            except grpc.RpcError:
                metadata = dict(call.trailing_metadata())
                return request_pb2.ErrorDetail.FromString(metadata["mstar-error-bin"])
    raise AssertionError("it refuses nothing")


def test_what_does_not_finish_in_time_is_handed_back(launched: dict[str, Launched], want: Values) -> None:
    one, before = launched["drained too long"], set(os.listdir("/dev/shm"))
    serving, workers = one.serving, list(one.serving.worker_pids().values())
    running = one.begin(steps=64, slow_ms=500.0)
    serving.process.send_signal(signal.SIGTERM)
    with pytest.raises(Unavailable):
        list(running)
    _, err = serving.process.communicate(timeout=STOPS_WITHIN_S)
    assert (serving.process.returncode, err) == (0, "")
    assert_nothing_is_left(one, workers, before)


def test_told_twice_it_stops_at_once(launched: dict[str, Launched], want: Values) -> None:
    one, before = launched["told twice"], set(os.listdir("/dev/shm"))
    serving, workers = one.serving, list(one.serving.worker_pids().values())
    running = one.begin(steps=64, slow_ms=500.0)
    serving.process.send_signal(signal.SIGTERM)
    first_refusal(serving.address)
    serving.process.send_signal(signal.SIGINT)
    with pytest.raises(MstarError):
        list(running)
    _, err = serving.process.communicate(timeout=STOPS_WITHIN_S)
    assert (serving.process.returncode, err) == (0, "")
    assert_nothing_is_left(one, workers, before)


def test_a_second_server_on_the_port_ends_at_once_with_a_sentence(
    composite_serving: Serving, composite_client: Client, tmp_path: Path
) -> None:
    port = int(composite_serving.address.rsplit(":", 1)[1])
    data = composite_deployment([composite("model", RULES)], 2, server={"port": port})
    config = write_deployment(tmp_path, data)
    second = subprocess.run(
        [sys.executable, "-m", "mstar_rt.cli", "serve", str(config)],
        capture_output=True, text=True, timeout=60, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert second.returncode == 2
    assert second.stdout == ""
    assert f"port {port} of 127.0.0.1 is in use" in second.stderr
    assert second.stderr.count("\n") == 1
    assert gathered(composite_client.run("one", "encode", {"image": image(1, 1)}, timeout_s=20))
