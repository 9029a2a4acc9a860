"""A foreign client's control session, driven in this process as `Robot.Control` is driven over gRPC."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mstar_rt.errors import ERRORS_BY_CODE, Cancelled, DeadlineExceeded, Internal, MstarError
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.protos.arrays import tensor_from_array
from mstar_rt.server.answering import error_detail
from mstar_rt.server.control import events
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.dispatch import new_id

PATIENCE_S = 20.0
"""How long a client that stands still until it is answered may be kept waiting, beyond the budget of its session."""


@dataclass(frozen=True, kw_only=True)
class ForeignObservation:
    """Images by the policy's cameras, [h, w, 3] uint8, and the state, [S] float32. An instruction of None stays as it
    was. `executed_index` and `executed_chunk_seq` (give both, or neither) and `wants_chunk` are those of
    wire.Observation.
    """

    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    masked: Sequence[str] = ()
    state: np.ndarray | None = None
    instruction: str | None = None
    executed_index: int | None = None
    executed_chunk_seq: int | None = None
    wants_chunk: bool | None = None


class ForeignRobot:
    """Lives on the server's event loop. Either `infer`, one observation at a time, or `submit` and `next_answer`.

    `peer` is the client's address as gRPC would have it: limits for one client count for it.
    """

    def __init__(self, service: ControlSessions, peer: str) -> None:
        self._clock = service.clock
        self._line = _Line(peer, self._hear)
        self._session = service.session(self._line)
        self._running: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[wire.ControlOpened] | None = None
        self._waiting: dict[int, asyncio.Future[wire.ActionChunk]] = {}
        self._resetting: asyncio.Future[None] | None = None
        self._answers: deque[wire.ActionChunk | MstarError] = deque(maxlen=1)
        self._news = asyncio.Event()
        self._end: MstarError | None = None
        self._execute: int | None = None
        self._newest_chunk: int | None = None
        self._instruction = ""
        self._seq = 0
        self._epoch = 0

    @property
    def ended(self) -> MstarError | None:
        """Why the session is over; None: it is not."""
        return self._end

    async def open(self, opening: wire.OpenControl) -> wire.ControlOpened:
        """Raises:  what `ControlSession.run` refuses it with."""
        assert self._running is None, "a robot is opened once"
        self._execute = opening.replan_every if opening.HasField("replan_every") else None
        self._instruction, self._epoch = opening.instruction, opening.epoch
        self._opened = asyncio.get_running_loop().create_future()
        self._line.say(open=opening)
        self._running = asyncio.create_task(self._run())
        try:
            return await self._opened
        except BaseException:
            await self.close()
            raise

    async def infer(
        self, seen: ForeignObservation, budget_ms: float | None = None, patience_s: float = PATIENCE_S
    ) -> wire.ActionChunk:
        """The chunk for an observation that nothing newer follows before it is answered.

        The robot stands still meanwhile: a chunk that comes after the budget is better than none. So an observation
        that is dropped as late is given the rest of `patience_s`, once; 0: it is not. Where the session has a
        `replan_every` and the observation does not say what was executed, so many actions of the last chunk were.

        Raises:  DeadlineExceeded, Internal, InvalidArgument, ...: there is none.  Cancelled: another observation, or a
        reset, came before.  Whatever the session has ended with.
        """
        until_ns = self._clock.now_ns() + int(patience_s * 1e9)
        seen = replace(seen, wants_chunk=True)
        try:
            return await self._answer(self._say(seen, budget_ms, self._executed(seen)))
        except DeadlineExceeded:
            rest_ms = (until_ns - self._clock.now_ns()) / 1e6
            if rest_ms <= 0 or self._end is not None:
                raise
        return await self._answer(self._say(seen, rest_ms, self._executed(seen)))

    def submit(self, seen: ForeignObservation, budget_ms: float | None = None) -> int:
        """Its seq. Newest wins: what is overtaken, not due, or of the last episode has no answer.

        Raises:  what the session has ended with.
        """
        return self._say(seen, budget_ms, (seen.executed_index, seen.executed_chunk_seq))

    async def next_answer(self) -> wire.ActionChunk | MstarError:
        """The newest chunk, or why an observation has none, that was not given out yet.

        Raises:  what the session has ended with.
        """
        while not self._answers:
            self._check_open()
            self._news.clear()
            await self._news.wait()
        return self._answers.popleft()

    async def reset(self, instruction: str | None = None, seed: int | None = None) -> None:
        """Another episode: what is still under way for the last one is not wanted any more."""
        self._check_open()
        self._epoch += 1
        if instruction is not None:
            self._instruction = instruction
        self._newest_chunk = None
        self._answers.clear()
        self._resetting = asyncio.get_running_loop().create_future()
        self._line.say(reset=wire.ResetEpisode(epoch=self._epoch, instruction=instruction, seed=seed))
        await self._resetting

    async def close(self) -> None:
        """Idempotent. The session's place is free when this returns."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait([self._running])

    # ---- to the session

    def _say(self, seen: ForeignObservation, budget_ms: float | None, executed: tuple[int | None, int | None]) -> int:
        self._check_open()
        if seen.instruction is not None and seen.instruction != self._instruction:
            self._instruction = seen.instruction
            self._line.say(set_instruction=wire.SetInstruction(instruction=seen.instruction))
        self._seq += 1
        index, chunk_seq = executed
        message = wire.Observation(
            seq=self._seq,
            epoch=self._epoch,
            images={name: _image(pixels) for name, pixels in seen.images.items()},
            masked_cameras=seen.masked,
            state=None if seen.state is None else tensor_from_array(seen.state),
            budget_ms=budget_ms,
            executed_index=index,
            executed_chunk_seq=chunk_seq,
            wants_chunk=seen.wants_chunk,
        )
        self._line.say(observation=message)
        return self._seq

    def _executed(self, seen: ForeignObservation) -> tuple[int | None, int | None]:
        if seen.executed_index is not None or self._execute is None or self._newest_chunk is None:
            return seen.executed_index, seen.executed_chunk_seq
        return self._execute - 1, self._newest_chunk

    async def _answer(self, seq: int) -> wire.ActionChunk:
        waiting = self._waiting[seq] = asyncio.get_running_loop().create_future()
        try:
            return await waiting
        finally:
            del self._waiting[seq]

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end
        assert self._opened is not None, "a robot is opened before it is driven"

    # ---- from the session

    async def _run(self) -> None:
        end: MstarError = Cancelled("the session is closed")
        try:
            await self._session.run()
        except Exception as error:
            detail = error_detail(error, new_id("r"))
            detail.message = detail.message.replace("control_hz / replan_every", "control_hz / execute")
            end = error_from(detail)
        finally:
            self._finish(end)

    def _finish(self, end: MstarError) -> None:
        self._end = end
        self._news.set()
        for waiting in (self._opened, self._resetting, *self._waiting.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(end)
                waiting.exception()  # whoever waited may have gone: nothing to complain about

    def _hear(self, response: wire.ControlResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "opened":
            assert self._opened is not None
            if not self._opened.done():
                self._opened.set_result(response.opened)
        elif kind == "chunk":
            if response.chunk.epoch == self._epoch:
                self._newest_chunk = response.chunk.answers_seq
            self._give(response.chunk.answers_seq, response.chunk)
        elif kind == "event":
            self._hear_event(response.event)

    def _hear_event(self, event: wire.ControlEvent) -> None:
        if event.kind == events.RESET_DONE:
            if self._resetting is not None and not self._resetting.done() and event.epoch == self._epoch:
                self._resetting.set_result(None)
        elif event.kind == events.FAILED:
            self._give(event.seq, error_from(event.detail))
        elif event.kind == events.DROPPED_LATE:
            self._give(event.seq, DeadlineExceeded("the observation's chunk could not be made within its budget"))
        elif event.kind in _WHY_DROPPED and event.seq in self._waiting:
            self._give(event.seq, Cancelled(_WHY_DROPPED[event.kind]))

    def _give(self, seq: int, answer: wire.ActionChunk | MstarError) -> None:
        waiting = self._waiting.get(seq)
        if waiting is None:
            self._answers.append(answer)
            self._news.set()
        elif not waiting.done():
            if isinstance(answer, MstarError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)


_WHY_DROPPED = {
    events.DROPPED_STALE: "a newer observation came before this one was answered",
    events.DROPPED_EPOCH: "the episode was over before this observation was answered",
    events.NOT_DUE: "the observation came sooner than its session is answered",
}


def error_from(detail: request_pb2.ErrorDetail) -> MstarError:
    """As a client of ours would raise it."""
    error = ERRORS_BY_CODE.get(detail.code, Internal)(detail.message)
    if detail.HasField("retry_after_ms"):
        error.retry_after_s = detail.retry_after_ms / 1e3
    return error


class _Line:
    """The session's stream: `say` is the client's end of it. Nothing waits: the session takes messages at once."""

    def __init__(self, peer: str, hear: Callable[[wire.ControlResponse], None]) -> None:
        self._peer = peer
        self._hear = hear
        self._said: deque[wire.ControlRequest] = deque()
        self._reader: asyncio.Future[None] | None = None

    def say(self, **message: object) -> None:
        self._said.append(wire.ControlRequest(**message))  # type: ignore[arg-type]
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> wire.ControlRequest:
        while not self._said:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._said.popleft()

    async def write(self, message: wire.ControlResponse, /) -> None:
        self._hear(message)

    def peer(self) -> str:
        return self._peer


def _image(pixels: np.ndarray) -> tensor_pb2.Image:
    height, width, channels = pixels.shape
    return tensor_pb2.Image(
        encoding=tensor_pb2.Image.ENCODING_RAW,
        data=pixels.tobytes(),
        height=height,
        width=width,
        channels=channels,
    )
