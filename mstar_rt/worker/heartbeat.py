"""Says that the worker lives, and what it does, while it is busy inside a step."""

from __future__ import annotations

import os
import threading

from mstar_rt.errors import Unavailable
from mstar_rt.message import Heartbeat
from mstar_rt.transport import ControlEndpoint

PERIOD_S = 0.25


class HeartbeatThread:
    """Sends a Heartbeat to the conductor several times a second, from a thread of its own.

    `step` is (when the step that runs now began, on the machine's monotonic clock, and the node that it runs), or
    (0, "") between steps. The worker's loop writes it, as one assignment.
    """

    def __init__(self, endpoint: ControlEndpoint, rank: int, period_s: float = PERIOD_S) -> None:
        self.step: tuple[int, str] = (0, "")
        self._endpoint = endpoint
        self._rank = rank
        self._period_s = period_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def beat(self) -> None:
        step_ns, node = self.step
        self._endpoint.send("conductor", Heartbeat(self._rank, os.getpid(), step_ns, node))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.beat()
            except Unavailable:
                return  # the endpoint was closed: the worker is ending
            self._stopping.wait(self._period_s)
