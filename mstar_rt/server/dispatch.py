"""`Dispatcher`: the server's end of the control plane. Requests and sessions go out, emissions and ends come
back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import ERRORS_BY_CODE, Internal, MstarError, Unavailable
from mstar_rt.message import (
    CancelRequest,
    Drain,
    Emitted,
    EmittedGroup,
    Finished,
    Message,
    PeerGone,
    Release,
    RequestFailed,
    ServingState,
    SessionOpened,
    Stats,
    Submit,
    Trace,
    Warmed,
    WarmUp,
)  # fmt: skip
from mstar_rt.model import ParamValue
from mstar_rt.server.answer_watch import ANSWER_GRACE_S, AnswerWatch
from mstar_rt.server.availability import Availability, draining
from mstar_rt.server.metrics import ServerMeters
from mstar_rt.server.request_stream import Emission, RequestStream
from mstar_rt.server.sessions import ControlRate, Sessions, param_fields
from mstar_rt.server.stats import Collected, Questions
from mstar_rt.server.tensor_port import Readers, TensorPort
from mstar_rt.server.unread_watch import UnreadWatch
from mstar_rt.transport.endpoint import ControlEndpoint, Envelope
from mstar_rt.transport.tensor_plane import TensorPlane

CONDUCTOR = "conductor"
MAX_UNREAD_BYTES = 64 << 20

_log = logging.getLogger(__name__)


def new_id(kind: str) -> str:
    """A name that no other request or session has, on this server or the next."""
    return f"{kind}-{secrets.token_hex(8)}"


class Dispatcher:
    """Lives on one event loop.

    `workers_of` names the workers of each model, `readers(model, task)` those that may read each input of a
    task. Deadlines are on `clock`; a request that has no end `answer_grace_s` after its deadline fails, and so
    does one of whose answer more than `max_unread_bytes` wait to be read (see UnreadWatch). `meters` count what the
    server's own statistics show.
    """

    def __init__(
        self,
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        workers_of: Mapping[str, tuple[str, ...]],
        readers: Callable[[str, str], Readers],
        clock: Clock | None = None,
        answer_grace_s: float = ANSWER_GRACE_S,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._tensors = TensorPort(plane)
        self._readers = readers
        self._unread = UnreadWatch(max_unread_bytes, self._give_up)
        self._clock = clock or MonotonicClock()
        self._watch = AnswerWatch(self._clock, answer_grace_s, self._give_up)
        self._streams: dict[str, RequestStream] = {}
        self._abandoned: dict[str, RequestStream] = {}
        self._attended: set[RequestStream] = set()
        self._one_left = asyncio.Event()
        self._sessions = Sessions(self._tell_conductor)
        self._num_submitted = 0
        workers = sorted({worker for group in workers_of.values() for worker in group})
        self._questions = Questions(endpoint, CONDUCTOR, workers)
        self.meters = ServerMeters(self._clock)
        self.availability = Availability(workers_of)
        self.on_warm_up: Callable[[WarmUp], None] | None = None

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
        warmup_on: Sequence[int] | None = None,
        is_cold: bool = False,
        client: str = "",
    ) -> RequestStream:
        """Start one request, already validated. The caller iterates over the stream, inside `async with`.

        `warmup_on`: run it on these ranks of the model's replica groups, although they may not serve yet. `is_cold`:
        its times are those of a first run. `client`: see Submit.

        Raises:  Unavailable: the model is not serving.  SharedMemoryExhausted: no room for the inputs.
        """
        self.availability.check(model, warmup_on is not None)
        readers = self._readers(model, task)
        refs = self._tensors.put_all(tensors, readers)
        stream = RequestStream(request_id, model, refs, readers, self._leave, task, criticality)
        submit = Submit(
            request_id=request_id,
            model=model,
            task=task,
            inputs=refs,
            params=param_fields(params),
            session_id=session_id,
            deadline_ns=deadline_ns,
            criticality=criticality,
            reply_to=self._endpoint.address,
            warmup_on=None if warmup_on is None else list(warmup_on),
            is_cold=is_cold,
            client=client,
        )
        try:
            self._endpoint.send(CONDUCTOR, submit)
        except MstarError:
            self._tensors.withdraw(refs, readers)
            raise
        stream.submitted_ns, stream.is_warmup = self._clock.now_ns(), warmup_on is not None
        self._streams[request_id] = stream
        self._attended.add(stream)
        self._num_submitted += 1
        if deadline_ns is not None:
            self._watch.start(stream, deadline_ns)
        return stream

    @property
    def serving(self) -> Mapping[str, ServingState]:
        return self.availability.states

    @property
    def draining(self) -> bool:
        return self.availability.draining

    async def wait_until_serving(self) -> None:
        """Return once every model serves."""
        await self.availability.wait_until_serving()

    @property
    def num_running(self) -> int:
        return len(self._streams)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    # ---- sessions

    async def open_session(
        self, model: str, warmup: bool = False, client: str = "", control: ControlRate | None = None
    ) -> str:
        """A session id under which the runtime keeps what walks persist, until `close_session`. `client` is the
        connection that it counts for. `control`: a robot's session, which is let in only if there is time for it.

        Raises:  Unavailable, ResourceExhausted or what else the conductor answers.
        """
        self.availability.check(model, warmup)
        session_id = new_id("s")
        await self._sessions.open(session_id, model, client, control)
        return session_id

    def close_session(self, session_id: str) -> None:
        """Free all that the session holds. Idempotent."""
        self._sessions.close(session_id)

    # ---- the whole runtime

    async def drain(self) -> int:
        """Take nothing new; returns the number of requests that still run."""
        await self.availability.drain()
        self._tell_conductor(Drain())
        return self.num_running

    async def wait_until_answered(self) -> None:
        """Return once no handler has a request any more: every answer has been written."""
        while self._attended:
            self._one_left.clear()
            await self._one_left.wait()

    def close(self) -> None:
        """The time to drain is over: take back what still runs, and end the sessions."""
        for stream in list(self._streams.values()):
            self._give_up(stream, draining("could not finish this request in time"))
        self.availability.close()

    def fail_all(self, error: MstarError) -> None:
        """End everything that runs and take nothing new, without a word to the conductor: it or we are gone."""
        self.availability.draining = True
        for stream in list(self._streams.values()):
            stream.fail(error)
            self._end(stream)
        self._sessions.fail_opening(error)

    def warmed(self, model: str, generation: int, reason: str = "") -> None:
        """Tell the conductor how the warm-up that it asked for went."""
        self._tell_conductor(Warmed(model, generation, reason))

    async def collect_stats(self) -> Collected:
        """Of all processes."""
        stats = await self._questions.stats()
        own = {
            "requests_running": float(self.num_running),
            "requests_submitted": float(self._num_submitted),
            "sessions": float(self.num_sessions),
            "bytes_held": float(self._tensors.num_held_bytes),
        }
        stats.values[self._endpoint.address] = own | self.meters.values()
        stats.histograms[self._endpoint.address] = self.meters.histograms()
        return stats

    async def collect_traces(self, last_s: float | None = None) -> tuple[dict[str, bytes], list[str]]:
        """What ended in the last seconds, or all that is kept, as rows by process (see trace.TraceRing.encoded), and
        the processes that did not answer in time."""
        since_ns = 0 if last_s is None else self._clock.now_ns() - int(last_s * 1e9)
        rows, silent = await self._questions.traces(since_ns)
        return {self._endpoint.address: self.meters.trace.encoded(since_ns), **rows}, silent

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
                        self._drop(envelope.message)
        finally:
            self.fail_all(Unavailable("the server is shutting down: retry after its restart"))

    async def _receive(self, envelope: Envelope) -> None:
        message: Message = envelope.message
        if isinstance(message, EmittedGroup):
            await self._emitted_together(message.records)
        elif isinstance(message, Emitted):
            await self._emitted(message)
        elif isinstance(message, Finished | RequestFailed):
            self._ended(message.request_id, message)
        elif isinstance(message, SessionOpened):
            self._sessions.resolve(message.session_id, None)
        elif isinstance(message, ServingState):
            await self.availability.update(message)
        elif isinstance(message, WarmUp):
            assert self.on_warm_up is not None, "somebody warms up"
            self.on_warm_up(message)
        elif isinstance(message, Stats | Trace):
            self._questions.receive(message)
        elif isinstance(message, Release):
            self._tensors.on_release(message)
        elif isinstance(message, PeerGone):
            self._peer_gone(message.address)
        else:
            _log.error("a %s from %s is not meant for the server", type(message).__name__, envelope.sender)

    def _drop(self, message: Message) -> None:
        """A message that we could not handle must not leave its request waiting for ever."""
        about = message.records[0] if isinstance(message, EmittedGroup) else message
        stream = self._streams.get(getattr(about, "request_id", ""))
        if stream is not None:
            self._give_up(stream, Internal("the server could not handle an answer to this request; its log has why"))

    async def _emitted_together(self, records: list[Emitted]) -> None:
        for position, record in enumerate(records, start=1):
            try:
                await self._emitted(record)
            except BaseException:
                for later in records[position:]:
                    self._tensors.release(later.tensor)
                raise

    async def _emitted(self, message: Emitted) -> None:
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
        elif self._unread.look(stream):
            await asyncio.sleep(0)

    def _ended(self, request_id: str, message: Finished | RequestFailed) -> None:
        if (abandoned := self._abandoned.pop(request_id, None)) is not None:
            self._end(abandoned)
        elif isinstance(message, RequestFailed) and self._sessions.is_opening(request_id):
            self._sessions.resolve(request_id, _error_of(message))
        elif (stream := self._streams.get(request_id)) is None or stream.finished is not None:
            _log.error("a second end came for request %s: %s", request_id, message)
        else:
            if isinstance(message, Finished):
                stream.finish(message)
            else:
                stream.fail(_error_of(message))
            if stream.ended:
                self._end(stream)

    def _peer_gone(self, address: str) -> None:
        self._tensors.forget(address)
        self._endpoint.forget_peer(address)
        for stream in list(self._streams.values()):
            stream.lose_sender(address)
            if stream.ended:
                self._end(stream)

    # ---- ends

    def _leave(self, stream: RequestStream) -> None:
        """The handler is through with the request."""
        self._attended.discard(stream)
        self._one_left.set()
        if not stream.ended:
            self._abandon(stream)

    def _give_up(self, stream: RequestStream, error: MstarError) -> None:
        stream.fail(error)
        self._abandon(stream)

    def _abandon(self, stream: RequestStream) -> None:
        """Nobody wants it any more: tell the conductor, and let go of whatever still arrives."""
        if stream.finished is not None:
            self._end(stream)
            return
        if self._streams.pop(stream.request_id, None) is None:
            return
        self._note_end(stream)
        self._abandoned[stream.request_id] = stream
        self._tell_conductor(CancelRequest(stream.request_id))

    def _end(self, stream: RequestStream) -> None:
        """Forget the request, and free inputs that no worker took: a refused request never reaches one, and a
        walk that ends early may not have needed them."""
        self._note_end(stream)
        self._streams.pop(stream.request_id, None)
        self._tensors.withdraw(stream.inputs, stream.readers)

    def _note_end(self, stream: RequestStream) -> None:
        """An abandoned one ends twice: when nobody wants it any more, and when the conductor says that it is gone."""
        self._watch.stop(stream.request_id)
        self._unread.stop(stream.request_id)
        if not stream.ended_ns:
            stream.ended_ns = self._clock.now_ns()
            if not stream.is_warmup:
                self.meters.ended(stream)

    def _tell_conductor(self, message: Message) -> None:
        """Without effect once our endpoint is closed: the deployment goes down, and all that it holds with it."""
        with suppress(Unavailable):
            self._endpoint.send(CONDUCTOR, message)


def _error_of(message: RequestFailed) -> MstarError:
    error = ERRORS_BY_CODE.get(message.code, Internal)(message.message)
    if message.retry_after_s is not None:
        error.retry_after_s = message.retry_after_s
    return error
