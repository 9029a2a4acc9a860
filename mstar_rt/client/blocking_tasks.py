"""The blocking side of Tasks: any task of any model."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import grpc

from mstar_rt.client import answers, requests, results
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_detail, translated
from mstar_rt.client.messages import Numbers
from mstar_rt.errors import FailedPrecondition, MstarError, Unavailable
from mstar_rt.protos import task_pb2

CLOSE_TIMEOUT_S = 5.0


class TaskStream:
    """Iterate over the outputs as they are produced; `done` has timing and flags after the last. `cancel` ends it
    early.
    """

    def __init__(self, call: Any, connection: Connection) -> None:
        self._call = call
        self._connection = connection  # a call does not outlive its channel, whatever becomes of the client
        self.done: results.TaskDone | None = None

    def __iter__(self) -> Iterator[results.TaskOutput]:
        with translated(self._connection.address):
            for answer in self._call:
                if answer.WhichOneof("answer") == "done":
                    self.done = answers.task_done(answer.done)
                    return  # the last word: the call's status follows, and nobody needs to wait for it
                yield answers.task_output(answer.output)

    def cancel(self) -> None:
        self._call.cancel()


class TaskSession:
    """Requests of one model that share what its tasks persist, to be used in `with`. Threads take turns.

    A task that fails leaves the session usable; when the stream itself has failed, every call raises.
    """

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model
        self._last_id = 0
        self._turn = threading.Lock()
        self._outgoing: queue.SimpleQueue[task_pb2.TaskRequest | None] = queue.SimpleQueue()
        self._closed = False
        self._call = connection.tasks.Session(iter(self._outgoing.get, None))

    def __enter__(self) -> TaskSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        task: str,
        tensors: Mapping[str, Numbers] | None = None,
        *,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> list[results.TaskOutput]:
        """All outputs of one task, once it is done. Interrupting it closes the session."""
        with self._turn:
            if self._closed:
                raise FailedPrecondition(f"the session of {self._model!r} is closed: open another one")
            self._last_id += 1
            request = requests.task(self._last_id, self._model, task, tensors, budget_ms, criticality, options)
            self._outgoing.put(request)
            try:
                return list(self._outputs(self._last_id))
            except MstarError:
                raise
            except BaseException:
                # The answers that are still to come are in the way of any other request's.
                self.close()
                raise

    def close(self) -> None:
        """Free what the session holds, before this returns if nothing runs; what runs is cancelled. Idempotent."""
        was_open, self._closed = not self._closed, True
        self._outgoing.put(None)
        if was_open and self._turn.acquire(blocking=False):
            try:
                self._await_end()
            finally:
                self._turn.release()
        self._call.cancel()

    def _await_end(self) -> None:
        """The server ends the stream when it has freed the session; one that does not answer frees it when it can."""
        patience = threading.Timer(CLOSE_TIMEOUT_S, self._call.cancel)
        patience.start()
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        patience.cancel()

    def _outputs(self, message_id: int) -> Iterator[results.TaskOutput]:
        with translated(self._connection.address):
            for answer in self._call:
                assert answer.answers == message_id, "answers of one session come in the order of its requests"
                kind = answer.WhichOneof("answer")
                if kind == "error":
                    raise error_from_detail(answer.error)
                if kind == "done":
                    return
                yield answers.task_output(answer.output)
        raise Unavailable(f"the server at {self._connection.address} ended the session: open another one")
