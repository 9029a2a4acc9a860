"""One robot's stream: its messages in, chunks and events out."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc

from mstar_rt.clock import Clock
from mstar_rt.errors import FailedPrecondition, InvalidArgument, MstarError, ResourceExhausted
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2
from mstar_rt.server.answering import error_detail
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.clients import client_name
from mstar_rt.server.control import events
from mstar_rt.server.control.arrival import Arrived
from mstar_rt.server.control.counters import ControlCounters
from mstar_rt.server.control.episode import Episode, new_episode
from mstar_rt.server.control.outbox import Outbox
from mstar_rt.server.control.pilot import Pilot
from mstar_rt.server.control.region import SharedRegion, map_region
from mstar_rt.server.control.settings import ControlSettings, check_budget, settings_from
from mstar_rt.server.control.stream import ControlStream
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.metrics_sessions import SessionMeter
from mstar_rt.server.sessions import ControlRate
from mstar_rt.server.task_runner import TaskRunner

LAST_WORDS_S = 1.0
"""How long a stream that ends with an error waits until its robot has read what it was told before."""


class ControlSession:
    """Reading, computing and writing are three tasks: the newest observation, a heartbeat or a reset is taken in while
    a chunk is made, and a robot that does not read holds up nobody but itself.
    """

    def __init__(
        self, runner: TaskRunner, stream: ControlStream, clock: Clock, counters: ControlCounters, max_message_bytes: int
    ) -> None:
        self._runner = runner
        self._max_message_bytes = max_message_bytes
        self._stream = stream
        self._clock = clock
        self._counters = counters
        self._last_seq = -1
        self._session_id: str | None = None
        self._region: SharedRegion | None = None
        self._meter: SessionMeter | None = None

    async def run(self) -> None:
        """Raises:  InvalidArgument, FailedPrecondition: the robot breaks the protocol, or does not fit the policy.
        ResourceExhausted: it is not admitted, or does not read.  Unavailable: the model does not serve, or the server
        closes.
        """
        availability = self._runner.dispatcher.availability
        async with availability.until_closed():
            first = await self._stream.read()
        if first is grpc.aio.EOF:
            return
        try:
            await self._open(first)
            await self._serve()
        finally:
            self._release()
            if self._region is not None:
                self._region.close()
            if self._meter is not None:
                self._runner.dispatcher.meters.sessions.close(self._meter)

    async def _serve(self) -> None:
        reading = asyncio.create_task(self._read())
        piloting = asyncio.create_task(self._pilot.run())
        writing = asyncio.create_task(self._outbox.run())
        self._counters.opened()
        try:
            await self._until_finished(reading, piloting, writing)
        except Exception:
            await self._say_the_rest(piloting)
            raise
        finally:
            self._counters.closed()
            for task in (reading, piloting, writing):
                task.cancel()
            await asyncio.gather(reading, piloting, writing, return_exceptions=True)

    async def _until_finished(
        self, reading: asyncio.Task[bool], piloting: asyncio.Task[None], writing: asyncio.Task[None]
    ) -> None:
        """A `close` takes back what runs, and is answered when all memory is free; a robot that just stops sending gets
        what it has asked for.
        """
        closed = await _first_of(reading, piloting, writing)
        if closed:
            self._pilot.stop()
        else:
            self._pilot.finish()
        await _first_of(piloting, writing)
        if closed:
            self._release()  # whoever has read the answer finds its place free
            self._outbox.put(wire.ControlResponse(closed=wire.ControlClosed()))
        written = asyncio.create_task(self._outbox.written())
        try:
            await _first_of(written, writing)
        finally:
            written.cancel()

    async def _say_the_rest(self, piloting: asyncio.Task[None]) -> None:
        """What was said before the stream ends, if the robot reads it."""
        self._pilot.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.wait([piloting])
                await self._outbox.written()

    # ---- opening

    async def _open(self, message: wire.ControlRequest) -> None:
        if message.WhichOneof("message") != "open":
            raise FailedPrecondition("the first message of a control stream must be `open`, which names the policy")
        opening = message.open
        self._settings: ControlSettings = settings_from(self._runner, opening)
        self._runner.dispatcher.availability.check(self._settings.model.name)
        self._outbox = Outbox(self._stream, self._counters)
        session_id = await self._admitted(opening.takes_over)
        self._meter = self._runner.dispatcher.meters.sessions.open(
            session_id,
            "control",
            self._settings.model.name,
            client_name(self._stream),
            self._settings.admitted_hz,
            self._settings.budget_ms,
        )
        refused = self._map_region(opening)
        self._pilot = Pilot(
            self._runner, self._settings, session_id, self._region, self._outbox, self._clock, self._meter
        )
        self._episode = new_episode(self._settings, opening.epoch, self._settings.seed or 0, opening.instruction)
        opened = wire.ControlOpened(
            session_id=session_id,
            action_horizon=self._settings.policy.action_horizon,
            schema=self._settings.schema,
            admitted_hz=self._settings.admitted_hz,
            shared_memory=self._region is not None,
            shared_memory_refused=refused,
            epoch=opening.epoch,
            max_message_bytes=self._max_message_bytes,
            seed=self._settings.seed,
        )
        # To its end: a stream that fails during its first write cannot say why.
        await self._stream.write(wire.ControlResponse(opened=opened))

    async def _admitted(self, takes_over: str) -> str:
        """The name of the session, for which there is time on every rank.

        Raises:  ResourceExhausted: there is not, with the numbers, and the rate that would fit.
        """
        settings, measuring = self._settings, self._runner.measuring
        await measuring.first(settings.model, settings.task, settings.options)
        try:
            self._session_id = await self._admit(takes_over)
        except ResourceExhausted:
            if not await measuring.again(settings.model, settings.task, settings.options):
                raise
            self._session_id = await self._admit(takes_over)
        return self._session_id

    async def _admit(self, takes_over: str) -> str:
        settings = self._settings
        budget_s = settings.budget_ms / 1e3
        rate = ControlRate(settings.task, settings.admitted_hz, settings.options, takes_over, budget_s)
        return await self._runner.dispatcher.open_session(
            settings.model.name, client=client_name(self._stream), control=rate
        )

    def _release(self) -> None:
        if self._session_id is not None:
            self._runner.dispatcher.close_session(self._session_id)
        if self._meter is not None:
            self._runner.dispatcher.meters.sessions.close(self._meter)

    def _map_region(self, opening: wire.OpenControl) -> request_pb2.ErrorDetail | None:
        """Returns why the region that is offered is not used: the robot then sends bytes."""
        if opening.HasField("shared_memory"):
            try:
                self._region = map_region(opening.shared_memory, self._stream.peer())
                # The pilot decodes an observation when it computes it, and is through with it before the next one.
                self._region.reuse_copies = self._settings.policy.num_observations == 1
            except MstarError as error:
                return error_detail(error, "")
        return None

    # ---- reading

    async def _read(self) -> bool:
        """Take messages in; True once the robot closes, False once it just stops sending."""
        async with self._runner.dispatcher.availability.until_closed():
            while (message := await self._stream.read()) is not grpc.aio.EOF:
                kind = message.WhichOneof("message")
                if kind == "observation":
                    await self._observe(message.observation)
                elif kind == "heartbeat":
                    self._outbox.put(wire.ControlResponse(heartbeat=message.heartbeat))
                elif kind == "set_instruction":
                    self._set_instruction(message.set_instruction.instruction)
                elif kind == "reset":
                    self._reset(message.reset)
                elif kind == "close":
                    return True
                elif kind == "open":
                    raise FailedPrecondition("the stream is open already: open another one for another session")
                else:
                    raise InvalidArgument("a message of the control stream is empty, expected e.g. an observation")
        return False

    async def _observe(self, message: wire.Observation) -> None:
        timer = self._runner.timer()
        if message.seq <= self._last_seq:
            raise InvalidArgument(f"observation {message.seq} came after {self._last_seq}, seq must increase")
        self._last_seq = message.seq
        episode = self._episode
        if message.epoch != episode.epoch:
            self._outbox.put(events.event(events.DROPPED_EPOCH, episode.epoch, message.seq))
            return
        try:
            arrived = self._arrived(message, timer, episode)
        except MstarError as error:
            self._outbox.put(events.failed(error, episode.epoch, message.seq, new_id("r")))
            return
        await self._pilot.observe(arrived)

    def _arrived(self, message: wire.Observation, timer: CallTimer, episode: Episode) -> Arrived:
        budget_ms = self._settings.budget_ms
        if message.HasField("budget_ms"):
            check_budget(message.budget_ms)
            budget_ms = message.budget_ms
        return Arrived(
            message=message,
            timer=timer,
            deadline_ns=timer.arrived_ns + int(budget_ms * 1e6),
            episode=episode,
            tick=episode.sent.tick(
                message.executed_index if message.HasField("executed_index") else None,
                message.executed_chunk_seq if message.HasField("executed_chunk_seq") else None,
            ),
            instruction=episode.instruction,
            instruction_index=episode.instruction_index,
        )

    def _set_instruction(self, instruction: str) -> None:
        """From the next observation on."""
        self._check_instruction(instruction)
        self._episode.instruction = instruction
        self._episode.instruction_index += 1

    def _reset(self, message: wire.ResetEpisode) -> None:
        before = self._episode
        if message.epoch <= before.epoch:
            raise InvalidArgument(f"reset to epoch {message.epoch} after {before.epoch}, epochs must increase")
        instruction, seed = before.instruction, before.seed
        if message.HasField("instruction"):
            self._check_instruction(message.instruction)
            instruction = message.instruction
        if message.HasField("seed"):
            self._check_seed()
            seed = message.seed
        self._pilot.forget()
        self._episode = new_episode(self._settings, message.epoch, seed, instruction)
        self._outbox.put(events.event(events.RESET_DONE, message.epoch))

    def _check_instruction(self, instruction: str) -> None:
        if not self._settings.policy.takes_instruction:
            raise InvalidArgument(f"an instruction is given, but policy {self._settings.model.name!r} takes none")
        if not instruction.strip():
            raise InvalidArgument("the instruction is empty, the policy needs one")

    def _check_seed(self) -> None:
        if self._settings.seed is None:
            raise InvalidArgument(f"a seed is given, but policy {self._settings.model.name!r} draws no noise")


async def _first_of(*tasks: asyncio.Task[bool] | asyncio.Task[None]) -> bool | None:
    """The result of the first task, once it is done. The others go on for ever unless they fail.

    Raises:  what any of them fails with meanwhile.
    """
    pending = set(tasks)
    while not tasks[0].done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return tasks[0].result()
