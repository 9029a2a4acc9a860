"""Requests from their submission until nothing of them is left anywhere: what arrives for them, their ends, and those
that nobody wants any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from mstar_rt.clock import Clock
from mstar_rt.errors import Internal, MstarError, Unavailable
from mstar_rt.message import Emitted, Finished
from mstar_rt.server.answer_watch import AnswerWatch
from mstar_rt.server.metrics import ServerMeters
from mstar_rt.server.request_stream import Emission, RequestStream
from mstar_rt.server.tensor_port import TensorPort
from mstar_rt.server.unread_watch import UnreadWatch

_log = logging.getLogger(__name__)


class OpenRequests:
    """A request runs until its stream has ended or is given up. One that is given up is abandoned until the conductor
    has ended it, too: `cancel` tells it the request's id.
    """

    def __init__(
        self,
        tensors: TensorPort,
        meters: ServerMeters,
        clock: Clock,
        answer_grace_s: float,
        max_unread_bytes: int,
        cancel: Callable[[str], None],
    ) -> None:
        self._tensors = tensors
        self._meters = meters
        self._clock = clock
        self._cancel = cancel
        self._unread = UnreadWatch(max_unread_bytes, self.give_up)
        self._watch = AnswerWatch(clock, answer_grace_s, self.give_up)
        self._running: dict[str, RequestStream] = {}
        self._abandoned: dict[str, RequestStream] = {}
        self._attended: set[RequestStream] = set()
        self._one_left = asyncio.Event()
        self.num_started = 0

    @property
    def running(self) -> Mapping[str, RequestStream]:
        return self._running

    def start(self, stream: RequestStream, deadline_ns: int | None) -> None:
        """It was submitted; its handler has it from now on, until `leave`."""
        stream.submitted_ns = self._clock.now_ns()
        self._running[stream.request_id] = stream
        self._attended.add(stream)
        self.num_started += 1
        if deadline_ns is not None:
            self._watch.start(stream, deadline_ns)

    async def wait_until_answered(self) -> None:
        """Return once no handler has a request any more: every answer has been written."""
        while self._attended:
            self._one_left.clear()
            await self._one_left.wait()

    # ---- what arrives

    async def emitted_together(self, records: list[Emitted]) -> None:
        for position, record in enumerate(records, start=1):
            try:
                await self.emitted(record)
            except BaseException:
                for later in records[position:]:
                    self._tensors.release(later.tensor)
                raise

    async def emitted(self, message: Emitted) -> None:
        stream = self._running.get(message.request_id)
        if stream is None:
            self._tensors.release(message.tensor)
            return
        ref = message.tensor
        try:
            data = self._tensors.take(ref)
        except MstarError as error:
            unread = Internal(f"an answer could not be read: {error}")
            self.give_up(stream, error if isinstance(error, Unavailable) else unread)
            return
        stream.add(Emission(message.walk, message.name, message.iteration, ref.dtype, ref.shape, data))
        if stream.ended:
            self._end(stream)
        elif self._unread.look(stream):
            await asyncio.sleep(0)

    def ended(self, request_id: str, end: Finished | MstarError) -> None:
        """The conductor has ended it."""
        if (abandoned := self._abandoned.pop(request_id, None)) is not None:
            self._end(abandoned)
        elif (stream := self._running.get(request_id)) is None or stream.finished is not None:
            _log.error("a second end came for request %s: %s", request_id, end)
        else:
            if isinstance(end, Finished):
                stream.finish(end)
            else:
                stream.fail(end)
            if stream.ended:
                self._end(stream)

    def lose_sender(self, address: str) -> None:
        """A worker is gone."""
        for stream in list(self._running.values()):
            stream.lose_sender(address)
            if stream.ended:
                self._end(stream)

    # ---- ends

    def leave(self, stream: RequestStream) -> None:
        """The handler is through with the request."""
        self._attended.discard(stream)
        self._one_left.set()
        if not stream.ended:
            self._abandon(stream)

    def give_up(self, stream: RequestStream, error: MstarError) -> None:
        stream.fail(error)
        self._abandon(stream)

    def give_up_all(self, new_error: Callable[[], MstarError]) -> None:
        for stream in list(self._running.values()):
            self.give_up(stream, new_error())

    def fail_all(self, error: MstarError) -> None:
        """Without a word to the conductor."""
        for stream in list(self._running.values()):
            stream.fail(error)
            self._end(stream)

    def _abandon(self, stream: RequestStream) -> None:
        """Nobody wants it any more: tell the conductor, and let go of whatever still arrives."""
        if stream.finished is not None:
            self._end(stream)
            return
        if self._running.pop(stream.request_id, None) is None:
            return
        self._note_end(stream)
        self._abandoned[stream.request_id] = stream
        self._cancel(stream.request_id)

    def _end(self, stream: RequestStream) -> None:
        """Forget the request, and free inputs that no worker took: a refused request never reaches one, and a
        walk that ends early may not have needed them."""
        self._note_end(stream)
        self._running.pop(stream.request_id, None)
        self._tensors.withdraw(stream.inputs, stream.readers)

    def _note_end(self, stream: RequestStream) -> None:
        """An abandoned one ends twice: when nobody wants it any more, and when the conductor says that it is gone."""
        self._watch.stop(stream.request_id)
        self._unread.stop(stream.request_id)
        if not stream.ended_ns:
            stream.ended_ns = self._clock.now_ns()
            if not stream.is_warmup:
                self._meters.ended(stream)
