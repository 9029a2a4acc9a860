"""The asyncio side of Tasks: any task of any model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from mstar_rt.client import answers, requests, results
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_detail, translated
from mstar_rt.client.messages import Numbers
from mstar_rt.errors import FailedPrecondition, Unavailable
from mstar_rt.protos import task_pb2


class AsyncTaskStream:
    """See `blocking_tasks.TaskStream`."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self.done: results.TaskDone | None = None

    async def __aiter__(self) -> AsyncIterator[results.TaskOutput]:
        with translated(self._address):
            async for answer in self._call:
                if answer.WhichOneof("answer") == "done":
                    self.done = answers.task_done(answer.done)
                else:
                    yield answers.task_output(answer.output)

    async def collect(self) -> list[results.TaskOutput]:
        """All outputs, once the task is done."""
        return [output async for output in self]

    def cancel(self) -> None:
        self._call.cancel()


class AsyncTaskSession:
    """See `blocking_tasks.TaskSession`; to be used in `async with`."""

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model
        self._last_id = 0
        self._closed = False
        self._outgoing: asyncio.Queue[task_pb2.TaskRequest | None] = asyncio.Queue()
        self._call = connection.tasks.Session(self._requests())

    async def __aenter__(self) -> AsyncTaskSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(
        self,
        task: str,
        tensors: Mapping[str, Numbers] | None = None,
        *,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> list[results.TaskOutput]:
        """All outputs of one task, once it is done."""
        if self._closed:
            raise FailedPrecondition(f"the session of {self._model!r} is closed: open another one")
        self._last_id += 1
        self._outgoing.put_nowait(
            requests.task(self._last_id, self._model, task, tensors, budget_ms, criticality, options),
        )
        return [output async for output in self._outputs()]

    def close(self) -> None:
        """Free what the session holds. Idempotent."""
        self._closed = True
        self._outgoing.put_nowait(None)
        self._call.cancel()

    async def _requests(self) -> AsyncIterator[task_pb2.TaskRequest]:
        while (request := await self._outgoing.get()) is not None:
            yield request

    async def _outputs(self) -> AsyncIterator[results.TaskOutput]:
        with translated(self._connection.address):
            async for answer in self._call:
                kind = answer.WhichOneof("answer")
                if kind == "error":
                    raise error_from_detail(answer.error)
                if kind == "done":
                    return
                yield answers.task_output(answer.output)
        raise Unavailable(f"the server at {self._connection.address} ended the session: open another one")
