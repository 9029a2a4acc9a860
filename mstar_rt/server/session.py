"""One planner's stream: its messages in, its commands one after the other, their answers out."""

from __future__ import annotations

import asyncio

import grpc

from mstar_rt.errors import (
    FailedPrecondition,
    InvalidArgument,
    MstarError,
    ResourceExhausted,
    Unavailable,
)
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.server.answering import Context, error_detail
from mstar_rt.server.clients import client_name
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.inputs import context_tensors
from mstar_rt.server.partial_check import check_given_tensors
from mstar_rt.server.session_commands import Command, SessionCommands
from mstar_rt.server.session_settings import SessionSettings, settings_from
from mstar_rt.server.task_runner import TaskRunner

MAX_PENDING = 16
"""Commands that may wait behind the one that runs."""


class WorldModelSession:
    """Reading and running are two tasks, so that observations are taken in while a plan runs."""

    def __init__(self, runner: TaskRunner, context: Context) -> None:
        self._runner = runner
        self._availability = runner.dispatcher.availability
        self._context = context
        self._writing = asyncio.Lock()
        self._last_message_id = 0
        self._pending: dict[int, Command] = {}
        self._queue: asyncio.Queue[Command | None] = asyncio.Queue()

    async def run(self) -> None:
        """Raises:  InvalidArgument, FailedPrecondition: the client breaks the protocol, or cannot open the
        session.  Unavailable: the server closes.
        """
        first = await self._next()
        if first is grpc.aio.EOF:
            return
        await self._open(first)
        running = asyncio.create_task(self._run_commands())
        try:
            closing_id = await self._read()
            await running
            if closing_id is not None:
                # First of all, so that whoever has read the answer finds its memory free.
                self._release()
                await self._reply(closing_id, closed=wire.WorldModelClosed())
        except Unavailable:
            await running  # what was asked for before the server closed has an answer
            raise
        finally:
            running.cancel()
            self._release()

    # ---- opening

    async def _open(self, message: wire.SessionRequest) -> None:
        self._check_order(message)
        if message.WhichOneof("command") != "open":
            raise FailedPrecondition("the first message of a session must be `open`, with the name of the model")
        self._settings: SessionSettings = settings_from(self._runner, message.open, client_name(self._context))
        self._session_id = await self._runner.dispatcher.open_session(
            self._settings.model.name, client=self._settings.client
        )
        self._commands = SessionCommands(self._runner, self._settings, self._session_id, self._write)
        self._meter = self._runner.dispatcher.meters.sessions.open(
            self._session_id, "world_model", self._settings.model.name, client_name(self._context)
        )
        try:
            await self._reply(message.message_id, opened=wire.WorldModelOpened(session_id=self._session_id))
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Idempotent."""
        self._runner.dispatcher.close_session(self._session_id)
        self._runner.dispatcher.meters.sessions.close(self._meter)

    # ---- reading

    async def _read(self) -> int | None:
        """Take messages in until the client closes; returns the id of its `close`, None if it just stopped
        sending.
        """
        try:
            while (message := await self._next()) is not grpc.aio.EOF:
                self._check_order(message)
                kind = message.WhichOneof("command")
                if kind == "close":
                    return message.message_id
                if kind == "observe" and not self._settings.keeps_history:
                    await self._observe(message)
                elif kind == "cancel":
                    await self._cancel(message)
                elif kind in ("set_goal", "observe", "plan", "rollout"):
                    await self._enqueue(message)
                elif kind == "open":
                    raise FailedPrecondition("the session is open already: open another stream for another session")
                else:
                    raise InvalidArgument(f"message {message.message_id} of the session holds no command")
            return None
        finally:
            self._queue.put_nowait(None)

    async def _next(self) -> wire.SessionRequest:
        async with self._availability.until_closed():
            return await self._context.read()

    def _check_order(self, message: wire.SessionRequest) -> None:
        if message.message_id <= self._last_message_id:
            raise InvalidArgument(
                f"message_id {message.message_id} came after {self._last_message_id}, "
                "the ids of a session must increase, from 1"
            )
        self._last_message_id = message.message_id

    async def _observe(self, message: wire.SessionRequest) -> None:
        """Into the slot of the newest observation, also while a command runs."""
        timer = self._runner.timer()
        try:
            with timer.decoding():
                self._commands.newest.check(message.observe)
                tensors = await context_tensors(message.observe.context)
                check_given_tensors(self._settings.model, ("plan", "rollout"), tensors)
        except MstarError as error:
            await self._reply_error(message.message_id, error, new_id("r"))
            return
        dropped = self._commands.newest.replace(message.message_id, tensors)
        if dropped is not None:
            event = wire.SessionEvent(
                kind=wire.SessionEvent.KIND_OBSERVATION_DROPPED,
                replaced_by=message.message_id,
                message=f"observation {dropped} was replaced before anything used it",
            )
            await self._reply(dropped, event=event)
        await self._reply(message.message_id, observed=wire.Observed(decode_us=timer.decode_us))

    async def _cancel(self, message: wire.SessionRequest) -> None:
        command = self._pending.get(message.cancel.message_id)
        found = command is not None and command.take_back()
        await self._reply(message.message_id, cancel_done=wire.CancelDone(found=found))

    async def _enqueue(self, message: wire.SessionRequest) -> None:
        command = Command(message=message, timer=self._runner.timer())
        if len(self._pending) > MAX_PENDING:
            error = ResourceExhausted(f"{len(self._pending)} commands of this session wait, at most {MAX_PENDING} may")
            await self._reply_error(message.message_id, error, command.request_id)
            return
        self._pending[message.message_id] = command
        self._queue.put_nowait(command)

    # ---- running

    async def _run_commands(self) -> None:
        while (command := await self._queue.get()) is not None:
            command.task = asyncio.ensure_future(self._answer(command))
            try:
                await command.task
            finally:
                del self._pending[command.message.message_id]

    async def _answer(self, command: Command) -> None:
        """Run a command; a failure is its answer and leaves the session as it was."""
        error: Exception | None = None
        try:
            command.begin()
            await self._commands.run(command)
        except asyncio.CancelledError:
            error = command.why_interrupted()
        except Exception as failure:
            error = failure
        self._meter.command(command.timer, error)
        if error is not None:
            await command.write(self._reply_error(command.message.message_id, error, command.request_id), last=True)

    # ---- answering

    async def _write(self, response: wire.SessionResponse) -> None:
        """A stream takes one write at a time."""
        async with self._writing:
            await self._context.write(response)

    async def _reply(self, answers: int, **answer: object) -> None:
        await self._write(wire.SessionResponse(answers=answers, **answer))  # type: ignore[arg-type]

    async def _reply_error(self, answers: int, error: Exception, request_id: str) -> None:
        await self._reply(answers, error=wire.SessionError(detail=error_detail(error, request_id)))
