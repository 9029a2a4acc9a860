"""Robot: control streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mstar_rt.clock import Clock
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.control_pb2_grpc import RobotServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.control.counters import ControlCounters
from mstar_rt.server.control.session import ControlSession
from mstar_rt.server.task_runner import TaskRunner


class RobotService(RobotServicer):
    def __init__(self, runner: TaskRunner, clock: Clock, max_message_bytes: int) -> None:
        self._runner = runner
        self._clock = clock
        self._max_message_bytes = max_message_bytes
        self._counters = ControlCounters(runner.dispatcher.meters.counters)

    async def Control(self, requests: AsyncIterator[wire.ControlRequest], context: Context) -> None:  # noqa: N802
        async with Answering(context):
            session = ControlSession(self._runner, context, self._clock, self._counters, self._max_message_bytes)
            await session.run()
