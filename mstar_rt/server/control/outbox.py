"""What a session has to say to its robot, one message at a time, without holding up whoever says it."""

from __future__ import annotations

import asyncio
from collections import deque

from mstar_rt.errors import ResourceExhausted
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.control.counters import ControlCounters
from mstar_rt.server.control.stream import ControlStream

MAX_UNWRITTEN = 256
"""Small messages that may wait for a robot that sends and does not read; chunks wait one at a time."""


class Outbox:
    """Messages leave in the order in which they were put; `run` writes them until it is cancelled. A stream takes one
    write at a time.
    """

    def __init__(self, stream: ControlStream, counters: ControlCounters) -> None:
        self._stream = stream
        self._counters = counters
        self._unwritten: deque[wire.ControlResponse] = deque()
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()

    def put(self, message: wire.ControlResponse) -> None:
        """Raises:  ResourceExhausted: the robot does not read."""
        if len(self._unwritten) >= MAX_UNWRITTEN:
            raise ResourceExhausted(
                f"{MAX_UNWRITTEN} messages wait for this robot, which sends but does not read: read the stream"
            )
        self._counters.said(message)
        self._unwritten.append(message)
        self._news.set()

    async def write(self, *messages: wire.ControlResponse) -> None:
        """Put messages and wait until the transport has taken them: nothing newer is worth being computed before."""
        for message in messages:
            self._counters.said(message)
        if len(messages) == 1 and not self._unwritten and not self._writing.locked():
            async with self._writing:  # without the detour of waking up another task
                await self._stream.write(messages[0])
            return
        self._unwritten.extend(messages)
        await self.written()

    async def written(self) -> None:
        """Return once the transport has taken all that was put."""
        while self._unwritten or self._writing.locked():
            await self._write_next()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self.written()

    async def _write_next(self) -> None:
        async with self._writing:
            if self._unwritten:
                await self._stream.write(self._unwritten.popleft())
