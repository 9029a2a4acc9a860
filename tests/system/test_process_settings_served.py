"""What a deployment file asks of the kernel arrives on every thread of its own process, and on no other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from serving import deployment, serving_of, write_deployment

from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition, Unavailable
from mstar_rt.process_settings import MESSENGER, check_permitted

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

PRIORITY = 3
FRAME = np.zeros((1, 64, 64, 3), np.uint8)


def test_every_process_gets_its_own(tmp_path: Path, dimensions: Path) -> None:
    cores = os.sched_getaffinity(0)
    first, last = min(cores), max(cores)
    priority = PRIORITY if _may_run_in_real_time() else 0
    config = deployment(
        dimensions,
        server={"port": 0, "process": {"cpus": [first], "realtime_priority": priority}},
        workers=[
            {"rank": 0},
            {"rank": 1, "process": {"cpus": [last], "realtime_priority": priority and priority - 1}},
        ],
        placement=[{"model": "tiny", "ranks": [0]}, {"model": "tiny", "nodes": ["encode"], "ranks": [1]}],
    )
    with serving_of(write_deployment(tmp_path, config)) as serving, serving.connect() as client:
        assert _on_every_thread(serving.process.pid, os.sched_getaffinity) == [{first}]
        assert _on_every_thread(serving.process.pid, _priority) == [priority]
        os.kill(serving.worker_pids()[0], signal.SIGKILL)  # its successor is started by a server that has its settings
        with pytest.raises(Unavailable):
            client.plan("tiny", FRAME, FRAME, np.zeros(7))
        client.wait_until_serving(60.0, "tiny")
        workers = serving.worker_pids()
        assert _on_every_thread(workers[0], os.sched_getaffinity) == [cores], "not its server's"
        assert _on_every_thread(workers[0], _priority) == [0], "not its server's"
        assert _on_every_thread(workers[1], os.sched_getaffinity) == [{last}]
        assert _on_every_thread(workers[1], _priority) == [priority and priority - 1]


def _may_run_in_real_time() -> bool:
    try:
        check_permitted(ProcessConfig(realtime_priority=PRIORITY))
    except FailedPrecondition:
        return False
    return True


def _on_every_thread(pid: int, look: object) -> list[object]:
    """What is found on its threads, each finding once."""
    assert callable(look)
    found: list[object] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        seen = look(int(thread))
        if seen not in found:
            found.append(seen)
    return found


def _priority(thread: int) -> int:
    """Without the one by which threads that carry messages are ahead."""
    priority = os.sched_getparam(thread).sched_priority
    is_ahead = priority > 0 and Path(f"/proc/{thread}/comm").read_text().startswith(MESSENGER)
    return priority - is_ahead
