"""The commands of a planner's session: each runs one task and writes its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from mstar_rt.errors import FailedPrecondition
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.server.answers import observed_answer, plan_answers, rollout_answers
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.dispatch import new_id
from mstar_rt.server.inputs import (
    TaskInput,
    context_tensors,
    goal_params,
    goal_tensors,
    observe_input,
    planner_input,
    rollout_input,
    set_goal_input,
    wants_distance,
)  # fmt: skip
from mstar_rt.server.observations import NewestObservation, ObservationHistory, View
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.server.session_settings import SessionSettings
from mstar_rt.server.task_runner import ServingOptions, TaskRunner
from mstar_rt.server.turn import Stage, Turn

Write = Callable[[wire.SessionResponse], Awaitable[None]]


@dataclass(kw_only=True)
class Command(Turn):
    """A message that runs a task. It is cancelled by the client, or by the end of the stream."""

    message: wire.SessionRequest
    timer: CallTimer
    request_id: str = field(default_factory=lambda: new_id("r"))

    @property
    def kind(self) -> str:
        kind = self.message.WhichOneof("command")
        assert kind is not None, "a message without a command is never enqueued"
        return kind

    def take_back(self) -> bool:
        """An observation that runs may be part of the history already."""
        if self.kind == "observe" and self.stage is not Stage.WAITING:
            return False
        return super().take_back()


class SessionCommands:
    """`write` sends an answer. `newest` is the slot of observations, or `history` what the runtime keeps of them."""

    def __init__(self, runner: TaskRunner, settings: SessionSettings, session_id: str, write: Write) -> None:
        self._runner = runner
        self._settings = settings
        self._session_id = session_id
        self._write = write
        self._has_goal = False
        self.newest = NewestObservation()
        self.history = ObservationHistory()

    async def run(self, command: Command) -> None:
        """Raises:  what the command is refused with or fails with."""
        if command.kind == "set_goal":
            await self._set_goal(command)
        elif command.kind == "observe":
            await self._observe(command)
        elif command.kind == "plan":
            await self._plan(command)
        else:
            assert command.kind == "rollout", command.kind
            await self._rollout(command)

    async def _set_goal(self, command: Command) -> None:
        timer = command.timer
        with timer.decoding():
            given = await set_goal_input(command.message.set_goal)
            stream = self._start(command, given, self._settings.serving(self._runner, None, timer))
        async with stream:
            await stream.collect()
            timing = timer.timing(stream)
        self._has_goal = True
        goal_set = wire.GoalSet(request_id=command.request_id, timing=timing)
        await self._end(command, wire.SessionResponse(answers=command.message.message_id, goal_set=goal_set))

    async def _observe(self, command: Command) -> None:
        """One more frame of the history. It has no budget: the one after it would go on from the wrong frame."""
        message, timer = command.message.observe, command.timer
        with timer.decoding():
            self.history.check(message)
            given = self._settings.with_window(await observe_input(message))
            criticality = self._settings.serving(self._runner, None, timer).criticality
            stream = self._start(command, given, ServingOptions(None, criticality, self._settings.client))
        async with stream:
            observed = await observed_answer(stream, timer)
        self.history.append(command.message.message_id)
        await self._end(command, wire.SessionResponse(answers=command.message.message_id, observed=observed))

    async def _plan(self, command: Command) -> None:
        message, timer = command.message.plan, command.timer
        with timer.decoding():
            given = self._settings.with_defaults(planner_input(message.planner), command.message.message_id)
            view = await self._view(message.context if message.HasField("context") else None)
            given.tensors |= view.tensors
            if message.HasField("goal"):
                given.tensors |= await goal_tensors(message.goal)
                given.params |= goal_params(message.goal)
            else:
                self._need_goal("plan")
            options = message.options if message.HasField("options") else None
            stream = self._start(command, given, self._settings.serving(self._runner, options, timer))
        improvements = message.improvements or not message.HasField("improvements")
        outputs = self._output_names("plan")
        async with stream:
            async for answer in plan_answers(stream, timer, outputs, improvements, self._answer_to(command)):
                if not answer.HasField("plan"):
                    await command.write(self._write(answer), last=False)
                    continue
                if view.observation_id is not None:
                    answer.plan.observation_id = view.observation_id
                await self._end(command, answer)

    async def _rollout(self, command: Command) -> None:
        message, timer = command.message.rollout, command.timer
        with timer.decoding():
            view = await self._view(message.context if message.HasField("context") else None)
            given = self._settings.with_window(await rollout_input(message.rollout, view.tensors))
            if wants_distance(message.rollout) and not message.rollout.HasField("goal"):
                self._need_goal("rollout")
            options = message.options if message.HasField("options") else None
            stream = self._start(command, given, self._settings.serving(self._runner, options, timer))
        outputs = self._output_names("rollout")
        async with stream:
            async for answer in rollout_answers(stream, timer, outputs, given.batched, self._answer_to(command)):
                await command.write(self._write(answer), last=answer.HasField("done"))

    async def _end(self, command: Command, answer: wire.SessionResponse) -> None:
        await command.write(self._write(answer), last=True)

    def _start(self, command: Command, given: TaskInput, serving: ServingOptions) -> RequestStream:
        return self._runner.start(self._settings.model, given, serving, command.request_id, self._session_id)

    async def _view(self, context: wire.Context | None) -> View:
        """What a command sees: its own context, or what the session has observed."""
        if context is not None:
            return View(await context_tensors(context), None)
        return self.history.view() if self._settings.keeps_history else self.newest.view()

    def _need_goal(self, command: str) -> None:
        if not self._has_goal:
            raise FailedPrecondition(f"the session has no goal: send `set_goal` first, or a goal with the {command}")

    def _output_names(self, task: str) -> list[str]:
        return [output.name for output in self._settings.model.task(task).outputs]

    def _answer_to(self, command: Command) -> Callable[[], wire.SessionResponse]:
        return partial(wire.SessionResponse, answers=command.message.message_id)
