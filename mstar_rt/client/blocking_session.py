"""The blocking side of WorldModel.Session. Used by one thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from mstar_rt.client import answers, messages, requests, results
from mstar_rt.client.channel import Connection
from mstar_rt.client.failures import error_from_detail, translated
from mstar_rt.client.messages import Images, Numbers
from mstar_rt.client.observation_chain import MAX_UNANSWERED, ObservationChain
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
        self._chain: ObservationChain[int] = ObservationChain()
        self._observing: set[int] = set()
        self._connection = connection
        self._closed = False
        self._outgoing: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        self._last_id = 0
        self._early: dict[int, deque[wire.SessionResponse]] = {}
        self._unwatched: set[int] = set()
        self._call = connection.world_model.Session(iter(self._outgoing.get, None))
        try:
            self.session_id = self._ask(open=opening)[-1].opened.session_id
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
        return answers.timing(self._ask(set_goal=goal)[-1].goal_set.timing)

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
        led from the frame before; the first has none. It waits while several before it are unanswered; when one fails,
        those that were sent after it fail with it, of which nothing more is raised.
        """
        context = messages.context(frames, state, latents, context_actions, context_states, extrinsics)
        if wait:
            with self._only_reader():
                message_id = self._send_observation(context, executed_action, self._read_alone)
                list(self._answers(message_id, self._read_alone))
        else:
            message_id = self._send_observation(context, executed_action, self._read)
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
        goal = messages.goal_if_given(goal_frames, goal_latents, goal_use, goal_weights)
        *before, last = self._ask(plan=requests.session_plan(goal, budget_ms, criticality, options))
        return answers.plan(last.plan, [answers.improvement(answer.improvement) for answer in before])

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
        for answer in self._answers(message_id, self._read):
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
        for answer in self._answers(message_id, self._read):
            if answer.WhichOneof("answer") == "done":
                yield answers.rollout_done(answer.done)
            else:
                yield answers.rollout_step(answer.step)

    def close(self) -> None:
        """End the session when all that was asked is answered; the server frees what it holds. Idempotent, and silent
        where the server has ended the session itself. The refusal of an observation that nothing has raised yet is
        raised when the session is closed.

        Raises:  FailedPrecondition: another thread waits for an answer; nothing has happened.
        """
        if self._closed:
            return
        with self._only_reader():
            try:
                fault = self._close()
            finally:
                self._abort()
        if fault is not None:
            raise fault

    def _close(self) -> MstarError | None:
        fault: MstarError | None = None
        message_id = self._send(close=wire.CloseWorldModel())
        with contextlib.suppress(Unavailable):
            while message_id not in self._early:
                taken = self._take_in()
                fault = fault or taken
        return fault

    # ---- the stream

    def _send_observation(
        self, context: wire.Context, executed_action: Numbers | None, read: Callable[[], None]
    ) -> int:
        """Where an earlier one of the history turns out to have failed, that is raised and nothing is sent."""
        if not self._keeps_history:
            return self._send(observe=requests.observe(context, executed_action, None))
        while len(self._observing) >= MAX_UNANSWERED:
            read()
        message_id = self._send(observe=requests.observe(context, executed_action, self._chain.newest))
        self._chain.sent(message_id)
        self._observing.add(message_id)
        return message_id

    def _ask(self, **command: Any) -> list[wire.SessionResponse]:
        """All answers. Another thread that asks for anything meanwhile is refused, before it has sent it."""
        with self._only_reader():
            return list(self._answers(self._send(**command), self._read_alone))

    def _send(self, **command: Any) -> int:
        self._connection.check_open()
        if self._closed:
            raise FailedPrecondition(f"this session at {self._connection.address} is closed: open another one")
        self._last_id += 1
        self._outgoing.put(wire.SessionRequest(message_id=self._last_id, **command))
        return self._last_id

    def _answers(self, message_id: int, read: Callable[[], None]) -> Iterator[wire.SessionResponse]:
        """The answers to one message, in order, to the last. Left early, it takes the message back."""
        ended = False
        try:
            while not ended:
                while message_id not in self._early:
                    read()
                answer = self._early[message_id].popleft()
                if not self._early[message_id]:
                    del self._early[message_id]
                ended = answer.WhichOneof("answer") in LAST_ANSWERS
                if answer.WhichOneof("answer") == "error":
                    raise error_from_detail(answer.error.detail)
                yield answer
        finally:
            if not ended:
                self._leave(message_id)

    def _leave(self, message_id: int) -> None:
        """Nobody is there any more for the rest of the answers."""
        rest = self._early.pop(message_id, ())
        if self._closed or self._connection.closed or any(each.WhichOneof("answer") in LAST_ANSWERS for each in rest):
            return
        self._unwatched.add(message_id)
        if message_id not in self._observing:
            self._unwatched.add(self._send(cancel=wire.CancelCommand(message_id=message_id)))

    def _read(self) -> None:
        """Raises:  FailedPrecondition: another thread waits for an answer.  MstarError: see `_read_alone`."""
        with self._only_reader():
            self._read_alone()

    def _read_alone(self) -> None:
        """Take in one answer.

        Raises:  MstarError: the stream has ended, or the answer is a refusal for which nobody waits.
        """
        if (fault := self._take_in()) is not None:
            raise fault

    def _take_in(self) -> MstarError | None:
        """One answer, which waits until it is asked for; returned is a refusal of a message for which nobody waits."""
        answer = self._next()
        if answer is None:
            raise Unavailable(f"the session at {self._connection.address} has ended: open another one")
        kind, message_id = answer.WhichOneof("answer"), answer.answers
        if kind == "event":
            self.events.append(answers.event(message_id, answer.event))
            return None
        follows_a_fault = self._note(answer, kind)
        if message_id not in self._unwatched:
            self._early.setdefault(message_id, deque()).append(answer)
            return None
        if kind in LAST_ANSWERS:
            self._unwatched.discard(message_id)
        if kind != "error" or answer.error.detail.code == "CANCELLED" or follows_a_fault:
            return None
        return error_from_detail(answer.error.detail)

    def _note(self, answer: wire.SessionResponse, kind: str) -> bool:
        """True: it is the refusal of an observation that was sent after one that failed."""
        of_history = answer.answers in self._observing
        self._observing.discard(answer.answers)
        if kind == "observed":
            self.observed = answers.observed(answer.answers, answer.observed)
            self._chain.accepted(answer.answers)
        return kind == "error" and not self._chain.failed(answer.answers) and of_history

    @contextlib.contextmanager
    def _only_reader(self) -> Iterator[None]:
        if not self._reading.acquire(blocking=False):
            raise FailedPrecondition("another thread waits for an answer of this session: open one session per thread")
        try:
            yield
        finally:
            self._reading.release()

    def _next(self) -> wire.SessionResponse | None:
        try:
            with translated(self._connection.address):
                return next(self._call, None)
        except MstarError:
            raise
        except BaseException:
            # An interrupted read leaves gRPC's stream unusable.
            self._abort()
            raise

    def _abort(self) -> None:
        self._closed = True
        self._outgoing.put(None)
        self._call.cancel()
