"""The worker says that it lives and what it runs, also while a step takes its time."""

from __future__ import annotations

import os

from mstar_rt.message import Heartbeat
from mstar_rt.transport import InProcessHub
from mstar_rt.worker.heartbeat import HeartbeatThread


def test_it_beats_until_it_is_stopped_or_the_endpoint_closes() -> None:
    hub = InProcessHub()
    conductor, endpoint = hub.endpoint("conductor"), hub.endpoint("worker/3")
    thread = HeartbeatThread(endpoint, 3, period_s=0.0)
    thread.step = (17, "decode")
    thread.start()
    heard = [envelope.message for _ in range(3) for envelope in conductor.receive(5.0)]
    thread.stop()
    assert heard[0] == Heartbeat(3, os.getpid(), 17, "decode")
    assert len(heard) >= 3
    other = HeartbeatThread(endpoint, 3, period_s=0.0)
    endpoint.close()
    other.start()
    other.stop()


def test_between_steps_it_says_so() -> None:
    hub = InProcessHub()
    conductor = hub.endpoint("conductor")
    HeartbeatThread(hub.endpoint("worker/0"), 0).beat()
    assert conductor.receive(0.0)[0].message == Heartbeat(0, os.getpid(), 0, "")
