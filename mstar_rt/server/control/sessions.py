"""What all control sessions of a server share, whoever they are with."""

from __future__ import annotations

from mstar_rt.clock import Clock
from mstar_rt.server.control.counters import ControlCounters
from mstar_rt.server.control.session import ControlSession
from mstar_rt.server.control.stream import ControlStream
from mstar_rt.server.task_runner import TaskRunner


class ControlSessions:
    def __init__(self, runner: TaskRunner, clock: Clock, max_message_bytes: int) -> None:
        self.runner = runner
        self.clock = clock
        self.max_message_bytes = max_message_bytes
        self._counters = ControlCounters(runner.dispatcher.meters.counters)

    def session(self, stream: ControlStream) -> ControlSession:
        return ControlSession(self.runner, stream, self.clock, self._counters, self.max_message_bytes)
