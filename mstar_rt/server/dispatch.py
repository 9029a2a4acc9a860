"""`Dispatcher`: the server's end of the control plane. Requests and sessions go out, emissions and ends come
back.
"""

from __future__ import annotations

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
    Playback,
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
from mstar_rt.server.answer_watch import ANSWER_GRACE_S
from mstar_rt.server.availability import Availability, draining
from mstar_rt.server.metrics import ServerMeters
from mstar_rt.server.open_requests import OpenRequests
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.sessions import ControlRate, Sessions, param_fields
from mstar_rt.server.stats import Collected, Questions
from mstar_rt.server.tensor_port import Readers, TensorPort
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
        self._clock = clock or MonotonicClock()
        self._sessions = Sessions(self._tell_conductor)
        workers = sorted({worker for group in workers_of.values() for worker in group})
        self._questions = Questions(endpoint, CONDUCTOR, workers)
        self.meters = ServerMeters(self._clock)
        self._requests = OpenRequests(
            self._tensors, self.meters, self._clock, answer_grace_s, max_unread_bytes, self._cancel
        )
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
        playback: Playback | None = None,
        num_together: int = 1,
    ) -> RequestStream:
        """Start one request, already validated. The caller iterates over the stream, inside `async with`.

        `warmup_on`: run it on these ranks of the model's replica groups, although they may not serve yet. `is_cold`:
        its times are those of a first run. `client`, `playback`, `num_together`: see Submit.

        Raises:  Unavailable: the model is not serving.  SharedMemoryExhausted: no room for the inputs.
        """
        self.availability.check(model, warmup_on is not None)
        readers = self._readers(model, task)
        refs = self._tensors.put_all(tensors, readers)
        stream = RequestStream(request_id, model, refs, readers, self._requests.leave, task, criticality)
        stream.is_warmup = warmup_on is not None
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
            playback=playback,
            num_together=num_together,
        )
        try:
            self._endpoint.send(CONDUCTOR, submit)
        except MstarError:
            self._tensors.withdraw(refs, readers)
            raise
        self._requests.start(stream, deadline_ns)
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
        return len(self._requests.running)

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
        """Take nothing new; returns the number of clients' requests that still run."""
        await self.availability.drain()
        self._tell_conductor(Drain())
        return sum(not stream.is_warmup for stream in self._requests.running.values())

    async def wait_until_answered(self) -> None:
        """Return once no handler has a request any more: every answer has been written."""
        await self._requests.wait_until_answered()

    def close(self) -> None:
        """The time to drain is over: take back what still runs, and end the sessions."""
        self._requests.give_up_all(lambda: draining("could not finish this request in time"))
        self.availability.close()

    def fail_all(self, error: MstarError) -> None:
        """End everything that runs and take nothing new, without a word to the conductor: it or we are gone."""
        self.availability.draining = True
        self._requests.fail_all(error)
        self._sessions.fail_opening(error)

    def warmed(self, model: str, generation: int, reason: str = "") -> None:
        """Tell the conductor how the warm-up that it asked for went."""
        self._tell_conductor(Warmed(model, generation, reason))

    async def collect_stats(self) -> Collected:
        """Of all processes."""
        stats = await self._questions.stats()
        own = {
            "requests_running": float(self.num_running),
            "requests_submitted": float(self._requests.num_started),
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
            await self._requests.emitted_together(message.records)
        elif isinstance(message, Emitted):
            await self._requests.emitted(message)
        elif isinstance(message, Finished | RequestFailed):
            self._ended(message)
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
        stream = self._requests.running.get(getattr(about, "request_id", ""))
        if stream is not None:
            self._requests.give_up(
                stream, Internal("the server could not handle an answer to this request; its log has why")
            )

    def _ended(self, message: Finished | RequestFailed) -> None:
        """A request, or the opening of a session."""
        if isinstance(message, Finished):
            self._requests.ended(message.request_id, message)
        elif self._sessions.is_opening(message.request_id):
            self._sessions.resolve(message.request_id, _error_of(message))
        else:
            self._requests.ended(message.request_id, _error_of(message))

    def _peer_gone(self, address: str) -> None:
        self._tensors.forget(address)
        self._endpoint.forget_peer(address)
        self._requests.lose_sender(address)

    def _cancel(self, request_id: str) -> None:
        self._tell_conductor(CancelRequest(request_id))

    def _tell_conductor(self, message: Message) -> None:
        """Without effect once our endpoint is closed: the deployment goes down, and all that it holds with it."""
        with suppress(Unavailable):
            self._endpoint.send(CONDUCTOR, message)


def _error_of(message: RequestFailed) -> MstarError:
    error = ERRORS_BY_CODE.get(message.code, Internal)(message.message)
    if message.retry_after_s is not None:
        error.retry_after_s = message.retry_after_s
    return error
