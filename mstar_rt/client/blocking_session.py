"""The blocking side of WorldModel.Session. Used by one thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from mstar_rt.client import answers, messages, requests, results
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_detail, translated
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.client.observation_chain import ObservationChain
from mstar_rt.errors import FailedPrecondition, MstarError, Unavailable
from mstar_rt.protos import world_model_pb2 as wire

LAST_ANSWERS = frozenset({"opened", "goal_set", "observed", "plan", "done", "cancel_done", "closed", "error"})


class WorldModelSession:
    """Keeps the goal, the newest observation (or the history) and the last plan on the server. `events` lists what
    happened to messages, `observed` is the server's answer to the last observation that it accepted.

    An error of one command leaves the session usable; when the stream itself has failed, every call raises.
    """

    def __init__(
        self,
        connection: Connection,
        opening: wire.OpenWorldModel,
    ) -> None:
        self.events: list[results.SessionEvent] = []
        self.observed: results.Observed | None = None
        self._keeps_history = opening.HasField("context_window")
        self._chain = ObservationChain()
        self._connection = connection
        self._closed = False
        self._outgoing: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        self._last_id = 0
        self._early: dict[int, list[wire.SessionResponse]] = {}
        self._unwatched: set[int] = set()
        self._call = connection.world_model.Session(iter(self._outgoing.get, None))
        try:
            self.session_id = self._ask(open=opening).opened.session_id
        except BaseException:
            self._abort()
            raise

    def __enter__(self) -> WorldModelSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._abort()

    def set_goal(
        self,
        goal_frames: Images | None = None,
        *,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
    ) -> results.Timing:
        """The goal of the plans and of the distances that follow, until the next one; see `Client.plan`."""
        goal = messages.goal(goal_frames, goal_latents, goal_use, goal_weights)
        return answers.timing(self._ask(set_goal=goal).goal_set.timing)

    def observe(
        self,
        frames: Images | None,
        state: Numbers | None = None,
        *,
        latents: Numbers | None = None,
        context_actions: Numbers | None = None,
        context_states: Numbers | None = None,
        extrinsics: Numbers | None = None,
        executed_action: Numbers | None = None,
        wait: bool = True,
    ) -> int:
        """Replace the newest observation; returns its message id. `wait=False` does not wait for the server
        to accept it: a refusal is then raised by a later call.

        In a session with `context_window` it is one new frame of the history instead, to which `executed_action` [A]
        led from the frame before; the first has none.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        follows = self._chain.newest if self._keeps_history else None
        message_id = self._send(observe=requests.observe(context, executed_action, follows))
        self._chain.sent(message_id)
        if wait:
            self._last_answer(message_id)
        else:
            self._unwatched.add(message_id)
        return message_id

    def plan(
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
        """Plan from the newest observation to the session's goal, or to the one that is given."""
        *_, plan = self.plan_stream(
            goal_frames=goal_frames, goal_latents=goal_latents, goal_use=goal_use, goal_weights=goal_weights,
            budget_ms=budget_ms, criticality=criticality, **options,
        )  # fmt: skip
        assert isinstance(plan, results.Plan)
        return plan

    def plan_stream(
        self,
        *,
        goal_frames: Images | None = None,
        goal_latents: Numbers | None = None,
        goal_use: str | None = None,
        goal_weights: Numbers | None = None,
        budget_ms: float | None = None,
        criticality: str | None = None,
        **options: Any,
    ) -> Iterator[results.PlanImprovement | results.Plan]:
        """Every improvement as it is made, then the plan. Closing the iterator cancels the search."""
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        message_id = self._send(plan=requests.session_plan(goal, budget_ms, criticality, options))
        improvements: list[results.PlanImprovement] = []
        for answer in self._answers(message_id):
            if answer.WhichOneof("answer") == "plan":
                yield answers.plan(answer.plan, improvements)
            else:
                improvements.append(answers.improvement(answer.improvement))
                yield improvements[-1]

    def rollout(
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
    ) -> Iterator[results.RolloutStep | results.RolloutDone]:
        """Imagine `actions` from the newest observation: the steps as they are made, then the end with its
        timing. `output`: see `Client.rollout`; distances are to the session's goal, or to the one that is given.
        """
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        rollout = messages.rollout(actions, states, output, goal, model_options)
        command = requests.session_rollout(rollout, budget_ms, criticality)
        message_id = self._send(rollout=command)
        for answer in self._answers(message_id):
            if answer.WhichOneof("answer") == "done":
                yield answers.rollout_done(answer.done)
            else:
                yield answers.rollout_step(answer.step)

    def close(self) -> None:
        """End the session when all that was asked is answered; the server frees what it holds. Idempotent, and silent
        where the server has ended the session itself.
        """
        if self._closed:
            return
        try:
            with contextlib.suppress(Unavailable):
                self._ask(close=wire.CloseWorldModel())
        finally:
            self._abort()

    # ---- the stream

    def _ask(self, **command: Any) -> wire.SessionResponse:
        return self._last_answer(self._send(**command))

    def _send(self, **command: Any) -> int:
        self._connection.check_open()
        if self._closed:
            raise FailedPrecondition(f"this session at {self._connection.address} is closed: open another one")
        self._last_id += 1
        self._outgoing.put(wire.SessionRequest(message_id=self._last_id, **command))
        return self._last_id

    def _last_answer(self, message_id: int) -> wire.SessionResponse:
        *_, answer = self._answers(message_id)
        return answer

    def _answers(self, message_id: int) -> Iterator[wire.SessionResponse]:
        """The answers to one message, in order, to the last. Left early, it takes the message back."""
        ended = False
        try:
            while not ended:
                early = self._early.pop(message_id, [])
                for answer in early or [self._read(message_id)]:
                    ended = answer.WhichOneof("answer") in LAST_ANSWERS
                    if answer.WhichOneof("answer") == "error":
                        raise error_from_detail(answer.error.detail)
                    yield answer
        except GeneratorExit:
            if not ended:
                self._unwatched.add(message_id)
                self._unwatched.add(self._send(cancel=wire.CancelCommand(message_id=message_id)))
            raise

    def _read(self, message_id: int) -> wire.SessionResponse:
        """The next answer to `message_id`; answers to other messages wait until they are asked for."""
        while True:
            answer = self._next()
            if answer is None:
                raise Unavailable(f"the session at {self._connection.address} has ended: open another one")
            kind = answer.WhichOneof("answer")
            self._note(answer, kind)
            if kind == "event":
                self.events.append(answers.event(answer.answers, answer.event))
            elif answer.answers == message_id:
                return answer
            elif answer.answers in self._unwatched:
                self._unwatched_answer(answer, kind)
            else:
                self._early.setdefault(answer.answers, []).append(answer)

    def _note(self, answer: wire.SessionResponse, kind: str) -> None:
        if kind == "observed":
            self.observed = answers.observed(answer.answers, answer.observed)
            self._chain.accepted(answer.answers)
        elif kind == "error":
            self._chain.failed(answer.answers)

    def _next(self) -> wire.SessionResponse | None:
        if not self._reading.acquire(blocking=False):
            raise FailedPrecondition("another thread waits for an answer of this session: open one session per thread")
        try:
            with translated(self._connection.address):
                return next(self._call, None)
        except MstarError:
            raise
        except BaseException:
            # An interrupted read leaves gRPC's stream unusable.
            self._abort()
            raise
        finally:
            self._reading.release()

    def _unwatched_answer(self, answer: wire.SessionResponse, kind: str) -> None:
        if kind in LAST_ANSWERS:
            self._unwatched.discard(answer.answers)
        if kind == "error" and answer.error.detail.code != "CANCELLED":
            raise error_from_detail(answer.error.detail)

    def _abort(self) -> None:
        self._closed = True
        self._outgoing.put(None)
        self._call.cancel()
