"""`Dispatcher`: the server's end of the control plane. Requests and sessions go out, emissions and ends come
back.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import numpy as np

from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import ERRORS_BY_CODE, Internal, MstarError, NotFound, Unavailable, nearest
from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Drain,
    Emitted,
    Finished,
    Message,
    OpenSession,
    ParamField,
    PeerGone,
    Release,
    RequestFailed,
    ServingState,
    SessionOpened,
    Stats,
    Submit,
)  # fmt: skip
from mstar_rt.model import ParamValue
from mstar_rt.server.answer_watch import ANSWER_GRACE_S, AnswerWatch
from mstar_rt.server.request_stream import Emission, RequestStream
from mstar_rt.server.stats import StatsCollector
from mstar_rt.server.tensor_port import TensorPort
from mstar_rt.transport.endpoint import ControlEndpoint, Envelope
from mstar_rt.transport.tensor_plane import TensorPlane

CONDUCTOR = "conductor"

_log = logging.getLogger(__name__)


def new_id(kind: str) -> str:
    """A name that no other request or session has, on this server or the next."""
    return f"{kind}-{uuid.uuid4().hex[:16]}"


class Dispatcher:
    """Lives on one event loop. `workers_of` names, per model, the workers that read a request's inputs.

    Deadlines are on `clock`; a request that has no end `answer_grace_s` after its deadline fails.
    """

    def __init__(
        self,
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        workers_of: Mapping[str, tuple[str, ...]],
        clock: Clock | None = None,
        answer_grace_s: float = ANSWER_GRACE_S,
    ) -> None:
        self._endpoint = endpoint
        self._tensors = TensorPort(plane)
        self._workers_of = workers_of
        self._watch = AnswerWatch(clock or MonotonicClock(), answer_grace_s, self._give_up)
        self._streams: dict[str, RequestStream] = {}
        self._abandoned: dict[str, RequestStream] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._sessions: set[str] = set()
        self._num_submitted = 0
        self.stats = StatsCollector(endpoint, [CONDUCTOR, *sorted({w for group in workers_of.values() for w in group})])
        self.serving = {model: ServingState(model, False, "it is starting") for model in workers_of}
        self.on_serving_changed: Callable[[], Awaitable[None]] | None = None
        self._serving_news = asyncio.Condition()
        self.draining = False

    # ---- requests

    def submit(
        self,
        model: str,
        task: str,
        tensors: Mapping[str, np.ndarray],
        params: Mapping[str, ParamValue],
        *,
        request_id: str,
        criticality: str,
        session_id: str | None = None,
        deadline_ns: int | None = None,
    ) -> RequestStream:
        """Start one request, already validated. The caller iterates over the stream, inside `async with`.

        Raises:  Unavailable: the model is not serving.  SharedMemoryExhausted: no room for the inputs.
        """
        self.check_serving(model)
        fields: dict[str, ParamField] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in params.items()
        }
        refs = self._tensors.put_all(tensors, self._workers_of[model])
        stream = RequestStream(request_id, model, refs, session_id is not None, self._abandon)
        self._streams[request_id] = stream
        try:
            self._endpoint.send(
                CONDUCTOR,
                Submit(
                    request_id,
                    model,
                    task,
                    refs,
                    fields,
                    session_id,
                    deadline_ns,
                    criticality,
                    self._endpoint.address,
                ),
            )
        except MstarError as error:
            stream.fail(error)
            self._end(stream)
            raise
        self._num_submitted += 1
        if deadline_ns is not None:
            self._watch.start(stream, deadline_ns)
        return stream

    def check_serving(self, model: str) -> None:
        """Raises:  Unavailable: draining, or the model has not warmed up or has lost a worker."""
        if model not in self.serving:
            raise NotFound(f"no model {model!r} is served, {nearest(model, self.serving)}")
        if self.draining:
            raise Unavailable(
                "this server is draining and takes nothing new: use another one, or retry after its restart"
            )
        state = self.serving[model]
        if not state.serving:
            raise Unavailable(f"model {model!r} is not serving: {state.reason or 'it is warming up'}; retry later")

    async def wait_until_serving(self) -> None:
        """Return once every model serves."""
        async with self._serving_news:
            await self._serving_news.wait_for(lambda: all(state.serving for state in self.serving.values()))

    @property
    def num_running(self) -> int:
        return len(self._streams)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    # ---- sessions

    async def open_session(self, model: str) -> str:
        """A session id under which the runtime keeps what walks persist, until `close_session`.

        Raises:  Unavailable, ResourceExhausted or what else the conductor answers.
        """
        self.check_serving(model)
        session_id = new_id("s")
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening[session_id] = opened
        self._sessions.add(session_id)
        self._endpoint.send(CONDUCTOR, OpenSession(session_id, model))
        try:
            await opened
        except BaseException as error:
            if isinstance(error, MstarError):
                self._sessions.discard(session_id)
            self.close_session(session_id)
            raise
        finally:
            del self._opening[session_id]
        return session_id

    def close_session(self, session_id: str) -> None:
        """Free all that the session holds. Idempotent."""
        if session_id in self._sessions:
            self._sessions.discard(session_id)
            self._tell_conductor(CloseSession(session_id))

    # ---- the whole runtime

    async def drain(self) -> int:
        """Take nothing new; returns the number of requests that still run."""
        self.draining = True
        self._endpoint.send(CONDUCTOR, Drain())
        await self._serving_changed()
        return self.num_running

    async def collect_stats(self) -> tuple[dict[str, dict[str, float]], list[str]]:
        """Values by process and name, and the processes that did not answer in time."""
        values, silent = await self.stats.ask()
        own = {
            "requests_running": float(self.num_running),
            "requests_submitted": float(self._num_submitted),
            "sessions": float(self.num_sessions),
            "bytes_held": float(self._tensors.num_held_bytes),
        }
        return {**values, self._endpoint.address: own}, silent

    # ---- what comes in

    async def run(self) -> None:
        """Receive until cancelled or until the endpoint is closed; then every running request fails."""
        try:
            while True:
                for envelope in await self._endpoint.receive_async():
                    try:
                        await self._receive(envelope)
                    except Exception:
                        _log.exception("a %s from %s was dropped", type(envelope.message).__name__, envelope.sender)
        finally:
            self._fail_all(Unavailable("the server is shutting down: retry after its restart"))

    async def _receive(self, envelope: Envelope) -> None:
        message: Message = envelope.message
        if isinstance(message, Emitted):
            self._emitted(message)
        elif isinstance(message, Finished | RequestFailed):
            self._ended(message.request_id, message)
        elif isinstance(message, SessionOpened):
            self._resolve_session(message.session_id, None)
        elif isinstance(message, ServingState):
            self.serving[message.model] = message
            await self._serving_changed()
        elif isinstance(message, Stats):
            self.stats.receive(message)
        elif isinstance(message, Release):
            self._tensors.on_release(message)
        elif isinstance(message, PeerGone):
            self._peer_gone(message.address)
        else:
            _log.error("a %s from %s is not meant for the server", type(message).__name__, envelope.sender)

    def _give_up(self, stream: RequestStream, error: MstarError) -> None:
        self._abandon(stream)
        stream.fail(error)

    def _emitted(self, message: Emitted) -> None:
        stream = self._streams.get(message.request_id)
        if stream is None:
            self._tensors.release(message.tensor)
            return
        ref = message.tensor
        try:
            data = self._tensors.take(ref)
        except MstarError as error:
            unread = Internal(f"an answer could not be read: {error}")
            self._give_up(stream, error if isinstance(error, Unavailable) else unread)
            return
        stream.add(Emission(message.walk, message.name, message.iteration, ref.dtype, ref.shape, data))
        if stream.ended:
            self._end(stream)

    def _ended(self, request_id: str, message: Finished | RequestFailed) -> None:
        if (abandoned := self._abandoned.pop(request_id, None)) is not None:
            abandoned.finished = message if isinstance(message, Finished) else None
            self._end(abandoned)
        elif isinstance(message, RequestFailed) and request_id in self._opening:
            self._resolve_session(request_id, _error_of(message))
        elif (stream := self._streams.get(request_id)) is None or stream.finished is not None:
            _log.error("a second end came for request %s: %s", request_id, message)
        else:
            if isinstance(message, Finished):
                stream.finish(message)
            else:
                stream.fail(_error_of(message))
            if stream.ended:
                self._end(stream)

    def _resolve_session(self, session_id: str, error: MstarError | None) -> None:
        opened = self._opening.get(session_id)
        if opened is None or opened.done():
            return
        if error is None:
            opened.set_result(None)
        else:
            opened.set_exception(error)

    def _peer_gone(self, address: str) -> None:
        self._tensors.forget(address)
        self._endpoint.forget_peer(address)
        if address == CONDUCTOR:
            self._abandoned.clear()
            self._fail_all(Unavailable("the conductor was lost: retry after its restart"))
        for stream in list(self._streams.values()):
            stream.lose_sender(address)
            if stream.ended:
                self._end(stream)

    def _fail_all(self, error: MstarError) -> None:
        for stream in list(self._streams.values()):
            stream.fail(error)
            self._end(stream)
        for session_id in list(self._opening):
            self._resolve_session(session_id, error)

    def _abandon(self, stream: RequestStream) -> None:
        """The handler gave up: tell the conductor, and let go of whatever still arrives."""
        if stream.finished is not None:
            self._end(stream)
            return
        self._watch.stop(stream.request_id)
        self._abandoned[stream.request_id] = stream
        del self._streams[stream.request_id]
        self._tell_conductor(CancelRequest(stream.request_id))

    def _end(self, stream: RequestStream) -> None:
        """Forget the request, and free inputs that no worker took: a refused request never reaches one.

        What a session's request gave may live on as the session's state, so there the workers let go
        themselves.
        """
        self._watch.stop(stream.request_id)
        self._streams.pop(stream.request_id, None)
        if stream.finished is None or not stream.in_session:
            self._tensors.withdraw(stream.inputs, self._workers_of[stream.model])

    def _tell_conductor(self, message: Message) -> None:
        """Without effect once our endpoint is closed: the deployment goes down, and all that it holds with it."""
        with suppress(Unavailable):
            self._endpoint.send(CONDUCTOR, message)

    async def _serving_changed(self) -> None:
        async with self._serving_news:
            self._serving_news.notify_all()
        if self.on_serving_changed is not None:
            await self.on_serving_changed()


def _error_of(message: RequestFailed) -> MstarError:
    return ERRORS_BY_CODE.get(message.code, Internal)(message.message)
