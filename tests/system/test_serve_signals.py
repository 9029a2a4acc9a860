"""How `mstar-rt serve` ends in the middle of a plan: asked to, interrupted at the terminal, or killed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import MAX_POLLS, Serving, deployment, is_alive, start_process, write_deployment

from mstar_rt.errors import MstarError
from mstar_rt.transport.deployment_directory import sweep_dead

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WAYS = ("term", "interrupt", "kill")
LONG = {"num_samples": 200, "num_elites": 8, "rollout_horizon": 4, "num_iterations": 100}
STOP_TIMEOUT_S = 20


@pytest.fixture(scope="module")
def servings(tmp_path_factory: pytest.TempPathFactory, dimensions: Path) -> Iterator[dict[str, tuple[Serving, Path]]]:
    """One for each way to end, each with a temporary directory of its own; it is short enough for sockets."""
    config = write_deployment(
        tmp_path_factory.mktemp("signals"), deployment(dimensions, server={"port": 0, "drain_timeout_s": 0})
    )
    with tempfile.TemporaryDirectory(prefix="mstar-") as base:
        started = {}
        for way in WAYS:
            folder = Path(base) / way
            folder.mkdir()
            started[way] = (Serving(config, {"TMPDIR": str(folder)}), folder)
        try:
            for serving, _ in started.values():
                serving.wait()
            yield started
        finally:
            for serving, _ in started.values():
                serving.end()


def in_the_middle_of_a_plan(serving: Serving) -> Any:
    frames = np.zeros((2, 64, 64, 3), np.uint8)
    stream = serving.connect().plan_stream("tiny", frames[:1], frames[1:], np.zeros(7), **LONG)
    next(stream)
    return stream


def wait_for_death(pids: list[int]) -> None:
    for _ in range(MAX_POLLS * 100):
        if not any(is_alive(pid) for pid in pids):
            return
    raise AssertionError(f"still alive: {[pid for pid in pids if is_alive(pid)]}")


@pytest.mark.parametrize("way", ["term", "interrupt"])
def test_asked_to_stop_it_leaves_nothing(servings: dict[str, tuple[Serving, Path]], way: str) -> None:
    serving, folder = servings[way]
    before = set(os.listdir("/dev/shm"))
    assert len(list(folder.glob("mstar-rt-*"))) == 1
    workers = list(serving.worker_pids().values())
    assert len(workers) == 1
    stream = in_the_middle_of_a_plan(serving)
    if way == "term":
        serving.process.send_signal(signal.SIGTERM)
    else:  # a terminal's Ctrl-C reaches the workers too
        os.killpg(serving.process.pid, signal.SIGINT)
    _, err = serving.process.communicate(timeout=STOP_TIMEOUT_S)
    assert serving.process.returncode == 0, err
    assert err == ""
    assert list(folder.iterdir()) == []
    assert not any(is_alive(pid) for pid in workers)
    assert set(os.listdir("/dev/shm")) <= before
    with pytest.raises(MstarError):
        list(stream)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_before_it_has_read_its_file(tmp_path: Path, number: signal.Signals) -> None:
    config = tmp_path / "deployment.yaml"
    os.mkfifo(config)
    process = start_process(config)
    with open(config, "w"):  # opens when the other side does
        process.send_signal(number)
        _, err = process.communicate(timeout=STOP_TIMEOUT_S)
    assert (process.returncode, err) == (0, "")


def test_killed_it_takes_its_workers_along_and_the_next_start_sweeps(servings: dict[str, tuple[Serving, Path]]) -> None:
    serving, folder = servings["kill"]
    before = set(os.listdir("/dev/shm"))
    workers = list(serving.worker_pids().values())
    stream = in_the_middle_of_a_plan(serving)
    serving.process.kill()
    serving.process.wait(STOP_TIMEOUT_S)
    wait_for_death(workers)
    with pytest.raises(MstarError):
        list(stream)
    assert set(os.listdir("/dev/shm")) <= before
    assert len(sweep_dead(folder)) == 1
    assert list(folder.iterdir()) == []
