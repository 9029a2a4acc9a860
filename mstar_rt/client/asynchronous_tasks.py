"""The asyncio side of Tasks: any task of any model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import grpc

from mstar_rt.client import answers, requests, results
from mstar_rt.client.blocking_tasks import CLOSE_TIMEOUT_S
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_call, error_from_detail, translated
from mstar_rt.client.messages import Numbers
from mstar_rt.errors import Cancelled, FailedPrecondition, MstarError, Unavailable
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
    """See `blocking_tasks.TaskSession`; to be used in `async with`. Tasks that were started at once run in turn."""

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model
        self._last_id = 0
        self._closed = False
        self._ended: MstarError | None = None
        self._outgoing: asyncio.Queue[task_pb2.TaskRequest | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Queue[task_pb2.TaskResponse | MstarError]] = {}

    async def __aenter__(self) -> AsyncTaskSession:
        self._call = self._connection.tasks.Session(self._requests())
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._waiting and not self._closed:
            # The server ends the stream when it has freed the session.
            self._closed = True
            self._outgoing.put_nowait(None)
            await asyncio.wait([self._reading], timeout=CLOSE_TIMEOUT_S)
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
        """All outputs of one task, once it is done. Cancelling the task that awaits this takes the request back."""
        if self._closed:
            raise FailedPrecondition(f"the session of {self._model!r} is closed: open another one")
        if self._ended is not None:
            raise self._ended
        self._last_id = message_id = self._last_id + 1
        request = requests.task(message_id, self._model, task, tensors, budget_ms, criticality, options)
        incoming = self._waiting[message_id] = asyncio.Queue()
        self._outgoing.put_nowait(request)
        try:
            return await self._collect(incoming)
        except asyncio.CancelledError:
            self._outgoing.put_nowait(task_pb2.TaskRequest(message_id=message_id, model=self._model, cancel=True))
            raise
        finally:
            del self._waiting[message_id]

    def close(self) -> None:
        """Free what the session holds; what runs is cancelled. Idempotent."""
        self._closed = True
        self._outgoing.put_nowait(None)
        self._call.cancel()

    @staticmethod
    async def _collect(incoming: asyncio.Queue[task_pb2.TaskResponse | MstarError]) -> list[results.TaskOutput]:
        outputs: list[results.TaskOutput] = []
        while True:
            answer = await incoming.get()
            if isinstance(answer, MstarError):
                raise answer
            kind = answer.WhichOneof("answer")
            if kind == "error":
                raise error_from_detail(answer.error)
            if kind == "done":
                return outputs
            outputs.append(answers.task_output(answer.output))

    async def _requests(self) -> AsyncIterator[task_pb2.TaskRequest]:
        while (request := await self._outgoing.get()) is not None:
            yield request

    async def _read(self) -> None:
        """Each answer to the request that waits for it; nobody waits for those of one that was taken back."""
        ended: MstarError = Unavailable(f"the server at {self._connection.address} ended the session: open another one")
        try:
            async for answer in self._call:
                if (incoming := self._waiting.get(answer.answers)) is not None:
                    incoming.put_nowait(answer)
        except grpc.RpcError as error:
            ended = error_from_call(error, self._connection.address)
        except asyncio.CancelledError:
            ended = Cancelled("the session was closed while its task ran")
        finally:
            self._ended = ended
            for incoming in self._waiting.values():
                incoming.put_nowait(ended)
