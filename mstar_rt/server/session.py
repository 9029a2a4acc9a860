"""One planner's stream: a goal, one slot for the newest observation, and commands that run in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import numpy as np

from mstar_rt.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    MstarError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)  # fmt: skip
from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.protos import request_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.server.answering import Context, error_detail
from mstar_rt.server.answers import plan_answers, rollout_answers
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.inputs import (
    TaskInput,
    context_tensors,
    goal_params,
    goal_tensors,
    planner_input,
    rollout_input,
    set_goal_input,
)  # fmt: skip
from mstar_rt.server.partial_check import check_given_options, check_given_tensors
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.task_runner import ServingOptions, TaskRunner

MAX_PENDING = 16
"""Commands that may wait behind the one that runs."""

SEED_RANGE = 2**63
"""Seeds are int64 from 0; a message id has one bit more."""


@dataclass
class Observation:
    """The newest-wins slot. `used`: some plan or rollout has started from it."""

    message_id: int
    tensors: dict[str, np.ndarray]
    used: bool = False


@dataclass
class Command:
    """A message that runs a task. It is cancelled by the client, or by the end of the stream."""

    message: wire.SessionRequest
    timer: CallTimer
    request_id: str = field(default_factory=lambda: new_id("r"))
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class WorldModelSession:
    """Reading and running are two tasks, so that observations are taken in while a plan runs."""

    def __init__(self, runner: TaskRunner, context: Context) -> None:
        self._runner = runner
        self._availability = runner.dispatcher.availability
        self._context = context
        self._writing = asyncio.Lock()
        self._observation: Observation | None = None
        self._has_goal = False
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
                await self._reply(closing_id, closed=wire.WorldModelClosed())
        except Unavailable:
            await running  # what was asked for before the server closed has an answer
            raise
        finally:
            running.cancel()
            self._runner.dispatcher.close_session(self._session_id)

    # ---- opening

    async def _open(self, message: wire.SessionRequest) -> None:
        self._check_order(message)
        if message.WhichOneof("command") != "open":
            raise FailedPrecondition("the first message of a session must be `open`, with the name of the model")
        opening = message.open
        self._model: ServedModel = self._runner.model(opening.model)
        if opening.HasField("context_window"):
            raise Unimplemented("context_window is not served: send the frames of the window with each observation")
        self._defaults = planner_input(opening.planner)
        check_given_options(self._model, ("plan",), self._defaults.params)
        check_given_tensors(self._model, ("plan",), self._defaults.tensors)
        self._options = opening.options
        self._runner.serving_options(opening.options, 0)
        self._session_id = await self._runner.dispatcher.open_session(self._model.name)
        try:
            await self._reply(message.message_id, opened=wire.WorldModelOpened(session_id=self._session_id))
        except BaseException:
            self._runner.dispatcher.close_session(self._session_id)
            raise

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
                if kind == "observe":
                    await self._observe(message)
                elif kind == "cancel":
                    await self._cancel(message)
                elif kind in ("set_goal", "plan", "rollout"):
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
        timer = self._runner.timer()
        try:
            with timer.decoding():
                if message.observe.HasField("executed_action"):
                    raise Unimplemented("executed_action is not served: send past frames and actions in the context")
                tensors = await context_tensors(message.observe.context)
                check_given_tensors(self._model, ("plan", "rollout"), tensors)
        except MstarError as error:
            await self._reply_error(message.message_id, error, new_id("r"))
            return
        replaced, self._observation = self._observation, Observation(message.message_id, tensors)
        if replaced is not None and not replaced.used:
            event = wire.SessionEvent(
                kind=wire.SessionEvent.KIND_OBSERVATION_DROPPED,
                replaced_by=message.message_id,
                message=f"observation {replaced.message_id} was replaced before anything used it",
            )
            await self._reply(replaced.message_id, event=event)
        await self._reply(message.message_id, observed=wire.Observed(decode_us=timer.decode_us))

    async def _cancel(self, message: wire.SessionRequest) -> None:
        command = self._pending.get(message.cancel.message_id)
        if command is not None:
            command.cancelled = True
            if command.task is not None:
                command.task.cancel()
        await self._reply(message.message_id, cancel_done=wire.CancelDone(found=command is not None))

    async def _enqueue(self, message: wire.SessionRequest) -> None:
        command = Command(message, self._runner.timer())
        if len(self._pending) > MAX_PENDING:
            error = ResourceExhausted(f"{len(self._pending)} commands of this session wait, at most {MAX_PENDING} may")
            await self._reply_error(message.message_id, error, command.request_id)
            return
        self._pending[message.message_id] = command
        self._queue.put_nowait(command)

    # ---- running

    async def _run_commands(self) -> None:
        run: dict[str, Callable[[Command], Awaitable[None]]] = {
            "set_goal": self._set_goal, "plan": self._plan, "rollout": self._rollout,
        }  # fmt: skip
        while (command := await self._queue.get()) is not None:
            kind = command.message.WhichOneof("command")
            assert kind is not None
            command.task = asyncio.ensure_future(self._answer(command, run[kind]))
            try:
                await command.task
            finally:
                del self._pending[command.message.message_id]

    async def _answer(self, command: Command, run: Callable[[Command], Awaitable[None]]) -> None:
        """Run a command; a failure is its answer and leaves the session as it was."""
        error: Exception | None = None
        try:
            if command.cancelled:
                raise Cancelled("the command was taken back before it started")
            await run(command)
        except asyncio.CancelledError:
            if not command.cancelled:
                raise
            error = Cancelled("the command was taken back while it ran")
        except Exception as failure:
            error = failure
        if error is not None:
            await self._reply_error(command.message.message_id, error, command.request_id)

    async def _set_goal(self, command: Command) -> None:
        timer = command.timer
        with timer.decoding():
            given = await set_goal_input(command.message.set_goal)
            stream = self._start(command, given, self._serving(None, timer))
        async with stream:
            await stream.collect()
            assert stream.finished is not None
            timing = timer.timing(stream.finished)
        self._has_goal = True
        goal_set = wire.GoalSet(request_id=command.request_id, timing=timing)
        await self._reply(command.message.message_id, goal_set=goal_set)

    async def _plan(self, command: Command) -> None:
        message, timer = command.message.plan, command.timer
        with timer.decoding():
            given = self._with_defaults(planner_input(message.planner), command.message.message_id)
            context, observation_id = await self._view(message.context if message.HasField("context") else None)
            given.tensors |= context
            if message.HasField("goal"):
                given.tensors |= await goal_tensors(message.goal)
                given.params |= goal_params(message.goal)
            elif not self._has_goal:
                raise FailedPrecondition("the session has no goal: send `set_goal` first, or a goal with the plan")
            serving = self._serving(message.options if message.HasField("options") else None, timer)
            stream = self._start(command, given, serving)
        improvements = message.improvements or not message.HasField("improvements")
        outputs = [output.name for output in self._model.task("plan").outputs]
        async with stream:
            async for answer in plan_answers(stream, timer, outputs, improvements):
                if isinstance(answer, wire.PlanImprovement):
                    await self._reply(command.message.message_id, improvement=answer)
                    continue
                if observation_id is not None:
                    answer.observation_id = observation_id
                await self._reply(command.message.message_id, plan=answer)

    async def _rollout(self, command: Command) -> None:
        message, timer = command.message.rollout, command.timer
        with timer.decoding():
            context, _ = await self._view(message.context if message.HasField("context") else None)
            given = await rollout_input(message.rollout, context)
            serving = self._serving(message.options if message.HasField("options") else None, timer)
            stream = self._start(command, given, serving)
        outputs = [output.name for output in self._model.task("rollout").outputs]
        async with stream:
            async for answer in rollout_answers(stream, timer, outputs, given.batched):
                if isinstance(answer, wire.RolloutStep):
                    await self._reply(command.message.message_id, step=answer)
                else:
                    await self._reply(command.message.message_id, done=answer)

    def _start(self, command: Command, given: TaskInput, serving: ServingOptions) -> RequestStream:
        return self._runner.start(self._model, given, serving, command.request_id, self._session_id)

    async def _view(self, context: wire.Context | None) -> tuple[dict[str, np.ndarray], int | None]:
        """What a command sees: its own context, or the newest observation and its message id."""
        if context is not None:
            return await context_tensors(context), None
        if self._observation is None:
            raise FailedPrecondition(
                "the session has no observation: send `observe` first, or a context with the command"
            )
        self._observation.used = True
        return self._observation.tensors, self._observation.message_id

    def _with_defaults(self, given: TaskInput, message_id: int) -> TaskInput:
        """Successive plans draw different noise, the same noise for the same messages."""
        params = self._seed(message_id) | self._defaults.params | given.params
        return TaskInput("plan", self._defaults.tensors | given.tensors, params)

    def _seed(self, message_id: int) -> dict[str, ParamValue]:
        takes_seed = any(param.name == "seed" for param in self._model.task("plan").params)
        return {"seed": message_id % SEED_RANGE} if takes_seed else {}

    def _serving(self, options: request_pb2.RequestOptions | None, timer: CallTimer) -> ServingOptions:
        merged = request_pb2.RequestOptions()
        merged.CopyFrom(self._options)
        if options is not None:
            merged.MergeFrom(options)
        return self._runner.serving_options(merged, timer.arrived_ns)

    # ---- answering

    async def _reply(self, answers: int, **answer: object) -> None:
        async with self._writing:
            await self._context.write(wire.SessionResponse(answers=answers, **answer))  # type: ignore[arg-type]

    async def _reply_error(self, answers: int, error: Exception, request_id: str) -> None:
        await self._reply(answers, error=wire.SessionError(detail=error_detail(error, request_id)))
