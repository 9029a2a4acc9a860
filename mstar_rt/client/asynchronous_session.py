"""The asyncio side of WorldModel.Session. Its methods may be called from several tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc

from mstar_rt.client import answers, messages, requests, results
from mstar_rt.client.blocking_session import LAST_ANSWERS
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_call, error_from_detail
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.client.observation_chain import MAX_UNANSWERED, ObservationChain
from mstar_rt.errors import FailedPrecondition, MstarError, Unavailable
from mstar_rt.protos import world_model_pb2 as wire


class _Observation:
    """One of a history, from when it is asked for until it is answered; its id is known once it is sent."""

    message_id: int | None = None


class AsyncWorldModelSession:
    """See `blocking_session.WorldModelSession`. To be used in `async with`, which opens and closes it."""

    def __init__(
        self,
        connection: Connection,
        opening: wire.OpenWorldModel,
    ) -> None:
        self.events: list[results.SessionEvent] = []
        self.observed: results.Observed | None = None
        self._keeps_history = opening.HasField("context_window")
        self._chain: ObservationChain[_Observation] = ObservationChain()
        self._observing: dict[int, _Observation] = {}
        self._fewer = asyncio.Event()
        self._turn = asyncio.Lock()
        self.session_id = ""
        self._connection = connection
        self._opened = False
        self._closed = False
        self._last_id = 0
        self._waiting: dict[int, asyncio.Queue[wire.SessionResponse | MstarError]] = {}
        self._ended: MstarError | None = None
        self._writing = asyncio.Lock()
        self._taking_back: set[asyncio.Task[None]] = set()
        self._opening = opening

    async def __aenter__(self) -> AsyncWorldModelSession:
        self._call = self._connection.world_model.Session()
        self._reading = asyncio.create_task(self._read())
        self._opened = True
        try:
            self.session_id = (await self._ask(open=self._opening)).opened.session_id
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self._abort()

    async def set_goal(
        self,
        goal_frames: Images | None = None,
        *,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
    ) -> results.Timing:
        answer = await self._ask(set_goal=messages.goal(goal_frames, goal_latents, goal_use, goal_weights))
        return answers.timing(answer.goal_set.timing)

    async def observe(
        self,
        frames: Images | None,
        state: Numbers | None = None,
        *,
        latents: Numbers | None = None,
        context_actions: Numbers | None = None,
        context_states: Numbers | None = None,
        extrinsics: Numbers | None = None,
        executed_action: Numbers | None = None,
    ) -> int:
        """Replace the newest observation, also while a plan runs; returns its message id. In a session with
        `context_window` it is one new frame of the history, which takes its turn: it waits while several before it
        are unanswered, and fails if the one before it does.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        observation = requests.observe(context, executed_action, None)
        return int((await self._ask(observe=observation)).answers)

    async def plan(
        self,
        *,
        goal_frames: Images | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> results.Plan:
        """Cancelling the task that awaits this takes the plan back."""
        stream = self.plan_stream(
            goal_frames=goal_frames, goal_latents=goal_latents, goal_use=goal_use, goal_weights=goal_weights,
            budget_ms=budget_ms, criticality=criticality, **options,
        )  # fmt: skip
        answered = [answer async for answer in stream][-1]
        assert isinstance(answered, results.Plan)
        return answered

    async def plan_stream(
        self,
        *,
        goal_frames: Images | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> AsyncIterator[results.PlanImprovement | results.Plan]:
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        command = requests.session_plan(goal, budget_ms, criticality, options)
        improvements: list[results.PlanImprovement] = []
        async for answer in self._answers(plan=command):
            if answer.WhichOneof("answer") == "plan":
                yield answers.plan(answer.plan, improvements)
            else:
                improvements.append(answers.improvement(answer.improvement))
                yield improvements[-1]

    async def rollout(
        self,
        actions: Numbers,
        *,
        states: Numbers | None = None,
        output: str | None = None,
        goal_frames: Images | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **model_options: Any,
    ) -> AsyncIterator[results.RolloutStep | results.RolloutDone]:
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        rollout = messages.rollout(actions, states, output, goal, model_options)
        command = requests.session_rollout(rollout, budget_ms, criticality)
        async for answer in self._answers(rollout=command):
            if answer.WhichOneof("answer") == "done":
                yield answers.rollout_done(answer.done)
            else:
                yield answers.rollout_step(answer.step)

    async def close(self) -> None:
        """Idempotent, and silent where the server has ended the session itself."""
        if self._closed:
            return
        try:
            with contextlib.suppress(Unavailable):
                await self._ask(close=wire.CloseWorldModel())
        finally:
            self._abort()

    # ---- the stream

    async def _ask(self, **command: Any) -> wire.SessionResponse:
        """The last answer, e.g. to a command that has only one."""
        return [answer async for answer in self._answers(**command)][-1]

    async def _answers(self, **command: Any) -> AsyncIterator[wire.SessionResponse]:
        """The answers to one message, in order, to the last. Left early, it takes the message back."""
        message_id, incoming, writing = await self._send(command)
        ended = False
        try:
            await self._written(writing)
            while not ended:
                answer = await incoming.get()
                if isinstance(answer, MstarError):
                    raise answer
                kind = answer.WhichOneof("answer")
                ended = kind in LAST_ANSWERS
                if kind == "error":
                    raise error_from_detail(answer.error.detail)
                yield answer
        finally:
            del self._waiting[message_id]
            if not ended and self._ended is None:
                self._take_back(message_id)

    async def _send(
        self, command: dict[str, Any]
    ) -> tuple[int, asyncio.Queue[wire.SessionResponse | MstarError], asyncio.Task[None]]:
        """In the order of the calls, so that nothing overtakes an observation that waits for others' answers."""
        observation = _Observation() if "observe" in command and self._keeps_history else None
        if observation is not None:
            self._chain.sent(observation)
        try:
            async with self._turn:
                if observation is not None:
                    await self._wait_for_answers()
                    command["observe"].MergeFrom(wire.Observe(follows=self._followed_by(observation)))
                message_id, incoming = self._watch()
                writing = self._write(wire.SessionRequest(message_id=message_id, **command))
        except BaseException:
            if observation is not None:
                self._chain.failed(observation)
            raise
        if observation is not None:
            observation.message_id = message_id
            self._observing[message_id] = observation
        return message_id, incoming, writing

    async def _wait_for_answers(self) -> None:
        """Until few enough observations are on their way, or the stream has ended."""
        while len(self._observing) >= MAX_UNANSWERED and self._ended is None:
            self._fewer.clear()
            await self._fewer.wait()

    def _followed_by(self, observation: _Observation) -> int | None:
        """Raises:  FailedPrecondition: one that was asked for before has failed."""
        if self._ended is None and observation not in self._chain:
            raise FailedPrecondition("an observation before this one has failed: observe again from the newest")
        followed = self._chain.followed_by(observation) if observation in self._chain else None
        return None if followed is None else followed.message_id

    def _watch(self) -> tuple[int, asyncio.Queue[wire.SessionResponse | MstarError]]:
        self._connection.check_open()
        if self._closed:
            raise FailedPrecondition(f"this session at {self._connection.address} is closed: open another one")
        if not self._opened:
            raise FailedPrecondition("the session is not open: use it inside `async with`")
        if self._ended is not None:
            raise self._ended
        self._last_id += 1
        self._waiting[self._last_id] = asyncio.Queue()
        return self._last_id, self._waiting[self._last_id]

    def _take_back(self, message_id: int) -> None:
        self._last_id += 1
        cancel = wire.SessionRequest(message_id=self._last_id, cancel=wire.CancelCommand(message_id=message_id))
        taking_back = asyncio.ensure_future(self._written_if_open(self._write(cancel)))
        self._taking_back.add(taking_back)
        taking_back.add_done_callback(self._taking_back.discard)

    def _write(self, message: wire.SessionRequest) -> asyncio.Task[None]:
        """In a task of its own, because a write that is cancelled takes the whole stream with it. It is begun in the
        moment in which its message has got its id, so that messages go out in the order of their ids.
        """
        writing = asyncio.ensure_future(self._write_in_turn(message))
        writing.add_done_callback(_look_at)
        return writing

    async def _written_if_open(self, writing: asyncio.Task[None]) -> None:
        with contextlib.suppress(MstarError):
            await self._written(writing)

    async def _written(self, writing: asyncio.Task[None]) -> None:
        """Raises:  MstarError: the stream has ended; the reader knows why."""
        # A write on a channel that is closed before the call has connected never ends, so the end of the stream counts
        # as well.
        await asyncio.wait([writing, self._reading], return_when=asyncio.FIRST_COMPLETED)
        try:
            if writing.done():
                return writing.result()
        except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            await asyncio.wait([self._reading])
        writing.cancel()
        raise self._ended or self._unavailable()

    async def _write_in_turn(self, message: wire.SessionRequest) -> None:
        """A stream takes one write at a time."""
        async with self._writing:
            await self._call.write(message)

    async def _read(self) -> None:
        ended = self._unavailable()
        try:
            async for answer in self._call:
                kind = answer.WhichOneof("answer")
                if kind == "observed":
                    self.observed = answers.observed(answer.answers, answer.observed)
                if kind in ("observed", "error"):
                    self._note(answer.answers, accepted=kind == "observed")
                if kind == "event":
                    self.events.append(answers.event(answer.answers, answer.event))
                elif (incoming := self._waiting.get(answer.answers)) is not None:
                    incoming.put_nowait(answer)
        except grpc.RpcError as error:
            ended = error_from_call(error, self._connection.address)
        finally:
            self._ended = ended
            self._fewer.set()
            for incoming in self._waiting.values():
                incoming.put_nowait(ended)

    def _note(self, message_id: int, accepted: bool) -> None:
        """What became of an observation of the history, if the message is one."""
        observation = self._observing.pop(message_id, None)
        if observation is None:
            return
        self._fewer.set()
        if accepted:
            self._chain.accepted(observation)
        else:
            self._chain.failed(observation)

    def _unavailable(self) -> MstarError:
        return Unavailable(f"the session at {self._connection.address} has ended: open another one")

    def _abort(self) -> None:
        self._closed = True
        self._call.cancel()
        self._reading.cancel()


def _look_at(task: asyncio.Task[None]) -> None:
    """A write that fails when nobody waits for it any more is no news: the reader knows how the stream ended."""
    if not task.cancelled():
        task.exception()
