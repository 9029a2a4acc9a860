"""Robot: control streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.control_pb2_grpc import RobotServicer
from mstar_rt.server.answering import Answering, Context
from mstar_rt.server.control.sessions import ControlSessions


class RobotService(RobotServicer):
    def __init__(self, sessions: ControlSessions) -> None:
        self._sessions = sessions

    async def Control(self, requests: AsyncIterator[wire.ControlRequest], context: Context) -> None:  # noqa: N802
        async with Answering(context):
            await self._sessions.session(context).run()
