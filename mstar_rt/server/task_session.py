"""A session of Tasks: requests of one model that share what its walks persist, run one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from mstar_rt.errors import InvalidArgument, ResourceExhausted
from mstar_rt.protos import task_pb2 as wire
from mstar_rt.server.answering import Context, error_detail
from mstar_rt.server.availability import Availability
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.turn import Turn

MAX_PENDING = 64
"""Requests that may wait behind the one that runs."""

Write = Callable[[wire.TaskResponse], Awaitable[None]]
Run = Callable[[wire.TaskRequest, str, Write], Awaitable[None]]
"""Runs a request under a request id and writes its answers."""


@dataclass(kw_only=True)
class _Pending(Turn):
    request: wire.TaskRequest


class TaskSession:
    """Reading and running are two tasks, so that a request can be taken back while it runs."""

    def __init__(self, model: str, context: Context, availability: Availability, run: Run) -> None:
        self._model = model
        self._context = context
        self._availability = availability
        self._run = run
        self._writing = asyncio.Lock()
        self._last_id = -1
        self._pending: dict[int, _Pending] = {}
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue()

    async def serve(self, first: wire.TaskRequest, requests: AsyncIterator[wire.TaskRequest]) -> None:
        """Until the client has no more requests and all are answered.

        Raises:  InvalidArgument: a breach of protocol.  Unavailable: the server closes.
        """
        running = asyncio.create_task(self._run_in_turn())
        reading = asyncio.create_task(self._read(first, requests))
        try:
            await asyncio.wait([running, reading], return_when=asyncio.FIRST_EXCEPTION)
            for task in (reading, running):
                if task.done():
                    task.result()
        finally:
            reading.cancel()
            running.cancel()
            await asyncio.gather(reading, running, return_exceptions=True)

    async def _read(self, first: wire.TaskRequest, requests: AsyncIterator[wire.TaskRequest]) -> None:
        request: wire.TaskRequest | None = first
        while request is not None:
            if request.cancel:
                self._take_back(request.message_id)
            else:
                await self._accept(request)
            async with self._availability.until_closed():
                request = await anext(aiter(requests), None)
        self._queue.put_nowait(None)

    async def _accept(self, request: wire.TaskRequest) -> None:
        if request.model != self._model:
            raise InvalidArgument(f"the session is for model {self._model!r}, a request names {request.model!r}")
        if request.message_id <= self._last_id:
            raise InvalidArgument(f"message_id is {request.message_id} after {self._last_id}, ids must grow")
        self._last_id = request.message_id
        if len(self._pending) > MAX_PENDING:
            full = ResourceExhausted(f"{len(self._pending)} requests of this session wait, at most {MAX_PENDING} may")
            await self._refuse(request.message_id, full, new_id("r"))
            return
        pending = self._pending[request.message_id] = _Pending(request=request)
        self._queue.put_nowait(pending)

    def _take_back(self, message_id: int) -> None:
        """Without effect on a request that has ended."""
        pending = self._pending.get(message_id)
        if pending is not None:
            pending.take_back()

    async def _run_in_turn(self) -> None:
        while (pending := await self._queue.get()) is not None:
            pending.task = asyncio.ensure_future(self._answer(pending))
            try:
                await pending.task
            finally:
                pending.task.cancel()
                del self._pending[pending.request.message_id]

    async def _answer(self, pending: _Pending) -> None:
        """Run a request; a failure is its answer and leaves the session as it was."""
        request_id = new_id("r")
        error: Exception | None = None
        try:
            pending.begin()
            await self._run(pending.request, request_id, partial(self._write_output, pending))
        except asyncio.CancelledError:
            error = pending.why_interrupted()
        except Exception as failure:
            error = failure
        if error is not None:
            await pending.write(self._refuse(pending.request.message_id, error, request_id), last=True)

    async def _refuse(self, message_id: int, error: Exception, request_id: str) -> None:
        await self._write(wire.TaskResponse(answers=message_id, error=error_detail(error, request_id)))

    async def _write_output(self, pending: _Pending, response: wire.TaskResponse) -> None:
        await pending.write(self._write(response), last=response.HasField("done"))

    async def _write(self, response: wire.TaskResponse) -> None:
        """A stream takes one write at a time."""
        async with self._writing:
            await self._context.write(response)
