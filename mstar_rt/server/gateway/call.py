"""One HTTP call, from its first byte to its last: what it brings, how it is answered, what is left when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from mstar_rt.errors import NotFound
from mstar_rt.model import ServedModel
from mstar_rt.protos import request_pb2
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.gateway.body import JSON, BodyKind, Gone, JsonBody, read_body
from mstar_rt.server.gateway.errors import Refusal, UnknownModel
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.generation.image_requests import id_of
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.task_runner import TaskRunner

EVENTS = "text/event-stream; charset=utf-8"
MAX_WRITE_BYTES = 1 << 16
"""As much as a connection takes in before it makes its writer wait."""

TEXT = JsonBody()

Serve = Callable[["Call", Fields], Coroutine[Any, Any, None]]


class Call:
    """`client` is whom it counts for, `created_s` when it came, in seconds since 1970."""

    def __init__(self, runner: TaskRunner, scope: Scope, receive: Receive, send: Send) -> None:
        self.runner = runner
        self.request_id = new_id("r")
        self.timer = runner.timer()
        self.created_s = int(time.time())
        self.client = ""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self._is_events = False

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of the path."""
        return self._scope.get("path_params", {})

    # ---- what it brings

    def model(self, name: str) -> ServedModel:
        """Raises:  UnknownModel."""
        try:
            return self.runner.model(name)
        except NotFound as error:
            raise UnknownModel(str(error)) from None

    def start(self, model: ServedModel, given: TaskInput, budget_ms: float | None, index: int = 0) -> RequestStream:
        """Submit what it asks for, or number `index` of the requests that it takes.

        Raises:  what TaskRunner.start raises.
        """
        options = request_pb2.RequestOptions()
        if budget_ms is not None:
            options.budget_ms = budget_ms
        serving = self.runner.serving_options(options, self.timer.arrived_ns, None, self.client)
        return self.runner.start(model, given, serving, id_of(self.request_id, index))

    async def serve(self, serve: Serve, kind: BodyKind = TEXT) -> None:
        """A call with a body, until it is done or the client has gone. Errors are answers."""
        try:
            headers = Headers(scope=self._scope)
            kind.check(headers)
            body = await read_body(self._receive, headers, kind.max_bytes)
            with self.timer.decoding():
                fields = await kind.fields(headers, body)
            await self._unless_gone(serve(self, fields))
        except Gone:
            return
        except Exception as error:
            await self.refuse(error)

    async def _unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Raises:  Gone: the work is taken back, with all that it held."""
        working, gone = asyncio.create_task(work), asyncio.create_task(self._gone())
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)
        if working.cancelled():
            raise Gone
        working.result()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # ---- how it is answered

    async def answer(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The whole answer, as JSON."""
        await self.answer_bytes(msgspec.json.encode(value), JSON, status, headers)

    async def answer_bytes(
        self, data: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        length = {"content-length": str(len(data))}
        await self._begin(content_type, status, {**length, **(headers or {})})
        await self.write(data)
        await self.end()

    async def begin(self, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """An answer in pieces; `write` and `end` follow."""
        await self._begin(content_type, 200, headers or {})

    async def begin_events(self) -> None:
        """Server-sent events; `event` and `end` follow."""
        self._is_events = True
        await self._begin(EVENTS, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def event(self, value: Any) -> None:
        """The first one begins the answer, if nothing has."""
        if not self._started:
            await self.begin_events()
        await self.write(b"data: " + msgspec.json.encode(value) + b"\n\n")

    async def write(self, data: bytes) -> None:
        """Return once the connection has taken it, but for the last MAX_WRITE_BYTES."""
        for start in range(0, len(data), MAX_WRITE_BYTES):
            piece = data[start : start + MAX_WRITE_BYTES]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """Nothing may be left to do after it: whoever waits for the call may end it now."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, content_type: str, status: int, headers: Mapping[str, str]) -> None:
        self._started = True
        lines = {"content-type": content_type, "x-request-id": self.request_id, **headers}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in lines.items()],
            }
        )

    async def refuse(self, error: Exception) -> None:
        """An answer that has begun is broken off, which its reader sees, too: only a whole one has an end."""
        refusal = Refusal(error, self.request_id)
        if not self._started:
            await self.answer(refusal.body, refusal.status, refusal.headers)
        elif self._is_events:
            await self.event({"type": "error", **refusal.body})
            await self.end()
