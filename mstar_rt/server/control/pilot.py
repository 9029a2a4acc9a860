"""Answers a session's newest observation, again and again, and says what became of the others."""

from __future__ import annotations

import asyncio

import numpy as np

from mstar_rt.clock import Clock
from mstar_rt.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2
from mstar_rt.server.answering import error_detail
from mstar_rt.server.control import events
from mstar_rt.server.control.arrival import Arrived
from mstar_rt.server.control.chunking import continuation
from mstar_rt.server.control.decoding import decode
from mstar_rt.server.control.delay import DelayEstimate
from mstar_rt.server.control.inference import answer, task_input
from mstar_rt.server.control.outbox import Outbox
from mstar_rt.server.control.pace import AdmittedPace
from mstar_rt.server.control.region import SharedRegion
from mstar_rt.server.control.settings import ControlSettings
from mstar_rt.server.control.slot import NewestSlot
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.metrics_sessions import SessionMeter
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.task_runner import ServingOptions, TaskRunner

RETRY_PAUSE_S = 0.01
"""Before an observation is run again: whoever lost a worker hears of it in no certain order."""


OVER_RATE = "over_rate"
"""Flag of a chunk whose observation came sooner than the session was admitted for."""

DROPPED_AS = {events.DROPPED_STALE: "stale", events.DROPPED_LATE: "late", events.DROPPED_EPOCH: "epoch"}
"""Why an observation has no chunk, as the session's figures have it."""


class Pilot:
    """`run` is a task of its own; `observe` and `forget` are called while it runs."""

    def __init__(
        self,
        runner: TaskRunner,
        settings: ControlSettings,
        session_id: str,
        region: SharedRegion | None,
        outbox: Outbox,
        clock: Clock,
        meter: SessionMeter,
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._session_id = session_id
        self._pace = AdmittedPace(settings.admitted_hz)
        self._region = region
        self._outbox = outbox
        self._clock = clock
        self._meter = meter
        self._meters = runner.dispatcher.meters
        self._slot: NewestSlot[Arrived] = NewestSlot()
        self._delay = DelayEstimate(settings.control_hz)
        self._current: Arrived | None = None
        self._stream: RequestStream | None = None
        self._pausing: asyncio.Task[None] | None = None
        self._recovering = False

    # ---- while it runs

    async def observe(self, arrived: Arrived) -> None:
        """A policy that sees a history sees every observation, also those that are overwritten."""
        if self._settings.policy.num_observations > 1 and not await self._see(arrived):
            return
        if not _is_due(arrived):
            self._say(events.NOT_DUE, arrived)
            return
        replaced = self._slot.put(arrived)
        if replaced is not None:
            self._say(events.DROPPED_STALE, replaced, replaced_by=arrived.seq)

    def forget(self) -> None:
        """The episode is over: what waits or runs is not wanted any more."""
        for arrived in (self._current, self._slot.clear()):
            if arrived is not None:
                self._say(events.DROPPED_EPOCH, arrived)
        self._take_back()

    def finish(self) -> None:
        """Nothing more is observed: `run` ends once all is answered."""
        self._slot.close()

    def stop(self) -> None:
        """Nobody wants an answer any more: `run` ends, once the transport has what is being written. To cancel it would
        leave a half-done write, after which gRPC takes no other.
        """
        self._slot.clear()
        self._slot.close()
        self._take_back()
        if self._pausing is not None:
            self._pausing.cancel()

    # ---- running

    async def run(self) -> None:
        """Raises:  Unavailable: the server drains."""
        while True:
            arrived = await self._slot.take()
            if arrived is None:
                return
            self._current = arrived
            try:
                await self._answer(arrived)
            finally:
                self._current = None

    async def _answer(self, arrived: Arrived) -> None:
        request_id = new_id("r")
        try:
            response, actions = await self._compute(arrived, request_id)
        except Exception as error:
            if self._current is arrived:
                await self._give_up(arrived, error, request_id)
            return
        if self._current is arrived:
            await self._send(arrived, response, actions)

    async def _compute(self, arrived: Arrived, request_id: str) -> tuple[wire.ControlResponse, np.ndarray]:
        """The chunk and its actions. Raises:  what it fails with; anything once the episode is over."""
        if arrived.window is None:
            await self._decode(arrived)
            if self._current is not arrived:
                raise Cancelled("the episode is over")
        with arrived.timer.decoding():
            continued = continuation(self._settings.chunking, arrived, self._delay)
            given = task_input(self._settings, arrived, continued)
            arrived.over_rate = not self._pace.take(arrived.timer.arrived_ns)
            # What comes sooner than the robot said is served like a plan: others were promised the time.
            criticality = "planning" if arrived.over_rate else "control"
            serving = ServingOptions(arrived.deadline_ns, criticality, self._session_id)
            stream = self._runner.start(self._settings.model, given, serving, request_id)
        arrived.episode.replanning.begin(arrived.tick, arrived.timer.arrived_ns)
        self._stream = stream
        try:
            async with stream:
                response, actions = await answer(stream, self._settings, arrived, given, continued)
        finally:
            self._stream = None
        if arrived.over_rate:
            response.chunk.flags.append(OVER_RATE)
        return response, actions

    async def _send(self, arrived: Arrived, response: wire.ControlResponse, actions: np.ndarray) -> None:
        """The next observation is begun once the transport has taken the chunk."""
        arrived.episode.sent.add(arrived.seq, arrived.tick, actions)
        now_ns = self._clock.now_ns()
        chunk = response.chunk
        asyncio.get_running_loop().call_soon(  # once the transport has begun to send
            self._meters.tick, self._meter, arrived.seq, arrived.timer, arrived.deadline_ns, now_ns, chunk
        )
        self._delay.add((now_ns - arrived.timer.arrived_ns) / 1e9)
        self._recovering = False
        self._current = None
        late = [events.event(events.LATE, arrived.episode.epoch, arrived.seq)] if now_ns > arrived.deadline_ns else []
        await self._outbox.write(response, *late)

    async def _see(self, arrived: Arrived) -> bool:
        """Into the history; an observation that cannot be decoded has failed."""
        try:
            await self._decode(arrived)
        except Exception as error:
            self._fail(arrived, error, new_id("r"))
            return False
        return True

    async def _decode(self, arrived: Arrived) -> None:
        with arrived.timer.decoding():
            settings = self._settings
            seen = await decode(arrived.message, settings.cameras, settings.policy.state is not None, self._region)
            arrived.window = arrived.episode.history.add(seen)

    # ---- what goes wrong

    async def _give_up(self, arrived: Arrived, error: Exception, request_id: str) -> None:
        arrived.episode.replanning.fail()
        if isinstance(error, DeadlineExceeded):
            self._meters.tick_dropped(self._meter, arrived.seq, arrived.timer, request_id)
            self._say_dropped_late(arrived, request_id)
        elif isinstance(error, Unavailable):
            await self._recover(arrived, error, request_id)
        else:
            self._fail(arrived, error, request_id)

    async def _recover(self, arrived: Arrived, error: Unavailable, request_id: str) -> None:
        """Put the observation back, and go on when the model serves again, or when the observation is too old."""
        if self._runner.dispatcher.draining:
            raise error
        if not self._recovering:
            self._recovering = True
            self._delay.leave_out_next()
            detail = error_detail(error, request_id)
            self._outbox.put(events.event(events.RECOVERING, arrived.episode.epoch, arrived.seq, detail=detail))
        newer = self._slot.put_back(arrived)
        if newer is not None:
            self._say(events.DROPPED_STALE, arrived, replaced_by=newer.seq)
        self._current = None
        deadline_ns = (newer or arrived).deadline_ns
        self._pausing = asyncio.create_task(self._pause(deadline_ns))
        try:
            await asyncio.wait([self._pausing])
        finally:
            self._pausing.cancel()
            self._pausing = None

    async def _pause(self, deadline_ns: int) -> None:
        await asyncio.sleep(RETRY_PAUSE_S)
        remaining_s = max((deadline_ns - self._clock.now_ns()) / 1e9, 0.0)
        await self._runner.dispatcher.availability.wait_for(self._settings.model.name, remaining_s)

    def _take_back(self) -> None:
        """What runs: its answer, or its failure, is nobody's."""
        self._current = None
        if self._stream is not None:
            self._stream.take_back()

    def _fail(self, arrived: Arrived, error: Exception, request_id: str) -> None:
        self._outbox.put(events.failed(error, arrived.episode.epoch, arrived.seq, request_id))

    def _say_dropped_late(self, arrived: Arrived, request_id: str) -> None:
        """A robot tries again after a drop, sooner than it said: it has to hear that this makes it wait."""
        detail = None
        if arrived.over_rate:
            error = ResourceExhausted(
                f"it came sooner than the {self._settings.admitted_hz:.4g} chunks per second of this session, so "
                "others went before it: give it a longer budget_ms, or open the session with a smaller replan_every"
            )
            detail = error_detail(error, request_id)
        self._say(events.DROPPED_LATE, arrived, detail=detail)

    def _say(
        self,
        kind: events.Kind,
        arrived: Arrived,
        replaced_by: int | None = None,
        detail: request_pb2.ErrorDetail | None = None,
    ) -> None:
        if kind in DROPPED_AS:
            self._meter.dropped[DROPPED_AS[kind]] += 1
        message = events.event(kind, arrived.episode.epoch, arrived.seq, replaced_by=replaced_by, detail=detail)
        self._outbox.put(message)


def _is_due(arrived: Arrived) -> bool:
    if arrived.message.HasField("wants_chunk"):
        return arrived.message.wants_chunk
    return arrived.episode.replanning.is_due(arrived.tick, arrived.timer.arrived_ns)
