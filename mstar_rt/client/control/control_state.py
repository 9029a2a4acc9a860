"""`ControlState`: everything of a control session but threads and sockets. Time comes from the clock that it is given.

Both clients feed it what comes from the server and what the robot sees, and send what lies in its outbox. Its methods
do not block; the blocking client calls them under one lock.
"""

from __future__ import annotations

import contextlib
from collections import deque

from mstar_rt.client import answers, arguments
from mstar_rt.client.control.action_queue import ActionQueue, QueuedChunk, RobotAction
from mstar_rt.client.control.arrivals import UNANSWERED, actions_from, event_from
from mstar_rt.client.control.delay_estimate import DelayEstimate
from mstar_rt.client.control.filling import Filling
from mstar_rt.client.control.in_flight import Asked, InFlight
from mstar_rt.client.control.liveness import Backoff, Heartbeats
from mstar_rt.client.control.observation import ObservationForm, Seen
from mstar_rt.client.control.outbox import Outbox
from mstar_rt.client.control.results import MAX_RECORDED, ActionChunk, ControlEvent, Recorder
from mstar_rt.client.control.robot_schema import PolicyInfo
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.client.control.shared_path import SharedPath
from mstar_rt.client.recording.tape import Tape
from mstar_rt.clock import Clock
from mstar_rt.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MstarError,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

PERMANENT = (InvalidArgument, Unauthenticated, NotFound, FailedPrecondition, Unimplemented)
"""Connecting again would end in the same."""


class ControlState:
    """`connected`: the server has accepted the session on the present connection. `fault`: the session has ended for
    good. `problem`: why there is no action, since the last chunk that was used.
    """

    def __init__(self, settings: ControlSettings, policy: PolicyInfo, clock: Clock, address: str = "") -> None:
        settings.check_against(policy)
        self.settings = settings
        self.policy = policy
        self.queue = ActionQueue(clock, settings.hold, settings.age_limit_s(policy))
        self._age_limit_ns = int(settings.age_limit_s(policy) * 1e9)
        self.outbox = Outbox()
        self.events: deque[ControlEvent] = deque(maxlen=MAX_RECORDED)
        self.latest: ActionChunk | None = None
        self.session_id = ""
        self.connected = False
        self.fault: MstarError | None = None
        self.problem: MstarError | None = None
        self._longest_delay = settings.longest_delay(policy)
        self._clock = clock
        schema = settings.schema or policy.schema
        self.shared = SharedPath(settings.shared_memory, address, schema.cameras)
        self._filling = Filling(ObservationForm(schema, policy), self.shared)
        self.record = Recorder(self.shared)
        self._tape = None
        if settings.record is not None:
            self._tape = Tape(settings.record, policy, address, clock, self.shared)
        self._delay = DelayEstimate()
        self._backoff = Backoff()
        self._heartbeats = Heartbeats(settings.heartbeat_timeout_s, clock.now_ns())
        self._connecting_since_ns = 0
        self._in_flight = InFlight()
        self._epoch = settings.epoch
        self._last_seq = 0
        self._instructions = [settings.instruction or ""]
        self._seed = settings.seed
        self._ticks_since_observation: int | None = None
        self._num_acts = 0
        self._num_attempts = 0

    # ---- the connection

    @property
    def interval_s(self) -> float:
        """How often `pulse` is to be called."""
        return self._heartbeats.interval_s

    def connecting(self) -> wire.ControlRequest:
        """The first message of a new connection. What the last one has not answered never counts any more."""
        self._epoch += self._num_attempts > 0
        self._num_attempts += 1
        self._connecting_since_ns = self._clock.now_ns()
        self._instructions = self._instructions[-1:]
        self._begin_epoch(keep_actions=True)
        self._delay.warm_up_again()
        self.outbox.clear()
        opening = self.settings.opening(self.policy, self._epoch, self._instructions[0], self._seed)
        if self.session_id:
            opening.takes_over = self.session_id
        if (offer := self.shared.offer()) is not None:
            opening.shared_memory.CopyFrom(offer)
        return self._taped(wire.ControlRequest(open=opening))

    def lost(self, error: MstarError) -> float | None:
        """The connection has ended. Returns the seconds until the next attempt; None: there is none, `fault` says
        why.
        """
        was_connected, self.connected = self.connected, False
        if self.record.num_connections == 0 or isinstance(error, PERMANENT):
            self.fault = error
        self.problem = error
        if was_connected:
            self._note(ControlEvent("connection_lost", None, self._epoch, str(error)))
        return self._backoff.next_s() if self.fault is None else None

    def pulse(self) -> Unavailable | None:
        """Send a heartbeat where one is due; returned is why the connection is to be given up."""
        now_ns = self._clock.now_ns()
        if not self.connected:
            limit_s = self.settings.open_timeout_s
            waited = now_ns - self._connecting_since_ns > limit_s * 1e9
            return Unavailable(f"the server has not opened the session within {limit_s:g} s") if waited else None
        if self._heartbeats.is_silent(now_ns):
            return Unavailable(f"the server has not answered for {self.settings.heartbeat_timeout_s:g} s")
        number = self._heartbeats.due(now_ns)
        if number is not None:
            self.outbox.command(wire.ControlRequest(heartbeat=wire.Heartbeat(number=number)))
        return None

    def next_message(self) -> wire.ControlRequest | None:
        """What is to be sent now; None: nothing waits."""
        message = self.outbox.pop()
        return None if message is None else self._taped(message)

    def close(self) -> None:
        """Nothing is sent any more. Idempotent."""
        self.shared.close()
        if self._tape is not None:
            self._tape.close()

    def received(self, response: wire.ControlResponse) -> None:
        self._heartbeats.heard()
        if self._tape is not None:
            self._tape.received(response)
        kind = response.WhichOneof("message")
        if kind == "opened":
            self._opened(response.opened)
        elif kind == "chunk":
            self._chunk(response.chunk)
        elif kind == "event":
            self._event(response.event)

    def _opened(self, opened: wire.ControlOpened) -> None:
        self.shared.answered(opened)
        self.connected = True
        self.session_id = opened.session_id
        self._filling.max_message_bytes = opened.max_message_bytes
        self.record.num_connections += 1
        self._backoff.succeeded()
        self._heartbeats = Heartbeats(self.settings.heartbeat_timeout_s, self._clock.now_ns())
        self.problem = None
        self._note(ControlEvent("connected", None, self._epoch))

    # ---- what the robot asks for

    def act(self, seen: Seen) -> RobotAction:
        """One control tick: an observation if one is due, and the action that is due."""
        if self._is_due():
            with contextlib.suppress(Unavailable):  # it is due in the next tick, too
                self.send(seen)
        else:
            self._filling.check(seen)
        return self.take()

    def observe_in_lockstep(self, seen: Seen) -> int | None:
        """A tick of a world that stands still until its chunk is there, so that no clock decides what is due: the
        observation is sent once `replan_every` actions of the newest chunk are executed. Returns the seq to wait for
        before `take`; None: there is none.

        Raises:  as `send`.
        """
        num_executed = self.queue.executed_index + 1
        if not self.has_answer or self.queue.num_remaining == 0 or num_executed >= (self.settings.replan_every or 1):
            return self.send(seen, wants_chunk=True)
        if self.policy.num_observations > 1:
            self.send(seen, wants_chunk=False)
        else:
            self._filling.check(seen)
        return None

    def take(self) -> RobotAction:
        """The action that is due now; the end of a control tick."""
        if self._ticks_since_observation is not None:
            self._ticks_since_observation += 1
        self._num_acts += 1
        return self._take()

    def send(self, seen: Seen, wants_chunk: bool | None = None) -> int:
        """Send this observation, due or not; returns its seq. `wants_chunk` None: that is up to the server, by
        `replan_every`, and a newer observation may take its place while it waits to be sent.

        Raises:  InvalidArgument: it does not fit the schema, or is longer than what the server takes.  Unavailable:
        there is no connection, or no shared memory, now.
        """
        if not self.connected:
            raise Unavailable("there is no connection to the server now: wait, or use `act`, which goes on without one")
        now_ns = self._clock.now_ns()
        request = wire.ControlRequest()
        observation = request.observation
        self.record.num_shared += self._filling.fill(observation, seen, self._last_seq + 1)
        if self.queue.newest_seq is None and self.queue.num_consumed > 0 and not self._waits():
            self._in_flight.clear()
            self.queue.start_ticks()
        self._last_seq += 1
        observation.seq, observation.epoch, observation.client_time_ns = self._last_seq, self._epoch, now_ns
        replaced = None
        if wants_chunk is None:
            replaced = self.outbox.observe(request)
        else:
            observation.wants_chunk = wants_chunk
            self.outbox.command(request)
        if replaced is not None:
            self._in_flight.dropped(replaced)
            self.shared.give_back(replaced)
            self._note(ControlEvent("overwritten", replaced, self._epoch, replaced_by=self._last_seq))
        self._say_what_is_executed(observation)
        self._in_flight.sent(self._last_seq, Asked(self.queue.num_consumed, now_ns, self._num_acts))
        self._ticks_since_observation = 0
        self.record.num_observations += 1
        return self._last_seq

    def set_instruction(self, instruction: str) -> None:
        """From the next observation on.

        Raises:  FailedPrecondition: the policy takes none.
        """
        self._check_instruction(instruction)
        self._instructions.append(instruction)
        self.outbox.command(wire.ControlRequest(set_instruction=wire.SetInstruction(instruction=instruction)))

    def reset(self, instruction: str | None, seed: int | None) -> None:
        """Another episode begins; None: as before."""
        if instruction is not None:
            self._check_instruction(instruction)
        if seed is not None:
            arguments.whole_from_0("seed", seed)
            self._seed = seed
        self._epoch += 1
        self._instructions = [self._instructions[-1] if instruction is None else instruction]
        self._begin_epoch(keep_actions=False)
        self.latest = self.problem = None
        self.shared.give_back(self.outbox.forget_observation())
        reset = wire.ResetEpisode(epoch=self._epoch, instruction=instruction, seed=seed)
        self.outbox.command(wire.ControlRequest(reset=reset))

    def _check_instruction(self, instruction: str) -> None:
        if not arguments.text("instruction", instruction).strip():
            raise InvalidArgument("the instruction is empty, expected what to do")
        if not self.policy.takes_instruction:
            raise FailedPrecondition(f"the policy {self.settings.model!r} takes no instruction")

    @property
    def has_answer(self) -> bool:
        """There is a chunk of this epoch to execute."""
        return self.queue.newest_seq is not None

    def first_action_has_come(self) -> bool:
        """Raises:  FailedPrecondition: no observation has been sent.  MstarError: what became of the one that was."""
        if self.has_answer or self._in_flight:
            return self.has_answer
        if self.problem is not None:
            raise self.problem
        raise FailedPrecondition("no observation has been sent: give one here, or call `act` before")

    def is_answered(self, seq: int) -> bool:
        """By a chunk for it or for a newer observation.  Raises:  MstarError: it will not be."""
        if self.latest is not None and self.latest.seq >= seq:
            return True
        if seq in self._in_flight:
            return False
        raise self.problem or Unavailable(f"observation {seq} is not on its way: it was dropped, or never sent")

    def _is_due(self) -> bool:
        if not self.connected:
            return False
        since, replan_every = self._ticks_since_observation, self.settings.replan_every
        if since is None or (not self._waits() and (replan_every is None or self.queue.num_remaining == 0)):
            return True
        if self.queue.newest_seq is None and self.queue.num_consumed > 0:
            return False  # the server counts from the one that is in flight
        if self.policy.num_observations > 1:
            return True  # the session's history is of successive ticks; when to answer is the server's to say
        return replan_every is not None and since >= replan_every

    def _waits(self) -> bool:
        """Is an observation on its way whose chunk will not be too old to be executed?"""
        return self._in_flight.has_newer(self._clock.now_ns() - self._age_limit_ns)

    def _say_what_is_executed(self, observation: wire.Observation) -> None:
        newest, remaining = self.queue.newest_seq, self.queue.remaining()
        observation.executed_index = self.queue.executed_index
        if newest is not None:
            observation.executed_chunk_seq = newest
        elif remaining is not None and self.settings.chunking_of_model:
            observation.previous_actions.CopyFrom(tensor_from_array(remaining))  # of the last connection
        delay = self._delay.delay
        if delay is not None and self.settings.sends_delay:
            observation.delay = min(delay, self._num_to_consume(), self._longest_delay)

    def _num_to_consume(self) -> int:
        """The most that the robot can consume before the chunk of an observation that is made now: what is left, and
        what the chunk of the one before brings, which comes first.
        """
        num, tick = self.queue.num_remaining, self._in_flight.newest_tick
        if tick is not None:
            num = max(num, self.policy.action_horizon - (self.queue.num_consumed - tick))
        return num

    def _take(self) -> RobotAction:
        before = self.queue.last_action
        action = self.queue.take()
        self.record.tick(action, before, started=self.queue.chunk is not None)
        return action if action.kind == "chunk" or self.problem is None else action.because(str(self.problem))

    # ---- what the server says

    def _chunk(self, message: wire.ActionChunk) -> None:
        seq = message.answers_seq
        self.shared.give_back(seq)
        if message.epoch != self._epoch:
            self.record.chunks["epoch"] += 1
            return
        asked = self._in_flight.answered(seq)
        if asked is None:
            self.record.chunks["older"] += 1
            return
        try:
            actions = actions_from(message, self.policy.schema.action.size)
        except MstarError as error:
            self._refuse(seq, error)
            return
        index = message.instruction_index
        instruction = self._instructions[index] if index < len(self._instructions) else None
        merged = self.queue.merge(QueuedChunk(seq, self._epoch, asked.tick, asked.made_ns, actions, instruction))
        num_consumed = self.queue.num_consumed - asked.tick
        latency_s = (self._clock.now_ns() - asked.made_ns) / 1e9
        self._delay.answered(self._num_acts - asked.num_acts, latency_s * self.settings.control_hz)
        self.record.chunk(merged, num_consumed, latency_s, message.num_denoise_steps)
        self.record.num_outrun += self.settings.chunking_of_model and num_consumed > message.delay_assumed
        if merged.outcome == "used":
            self.problem = None
        before = () if self.latest is None else self.latest.odd_flags
        self.latest = ActionChunk(
            seq, self._epoch, actions, message.delay_assumed, num_consumed, message.num_denoise_steps, latency_s,
            instruction, answers.timing(message.timing), message.request_id, tuple(message.flags),
        )  # fmt: skip
        odd = self.latest.odd_flags
        if odd and odd != before:
            self._note(ControlEvent("flagged", seq, self._epoch, ", ".join(odd)))

    def _refuse(self, seq: int, error: MstarError) -> None:
        self.problem = error
        self._ticks_since_observation = None
        self._note(ControlEvent("refused", seq, self._epoch, str(error)))

    def _event(self, message: wire.ControlEvent) -> None:
        event, error = event_from(message)
        self._note(event)
        if event.kind in UNANSWERED:
            self.shared.give_back(event.seq)
        if event.epoch != self._epoch:
            return
        if event.kind == "recovering":
            self._delay.warm_up_again()
            self.problem = error or Unavailable("the server recovers from the loss of a worker")
        if event.kind in UNANSWERED and event.seq is not None:
            self._in_flight.dropped(event.seq)
            self._is_left_without(event.kind, error)

    def _is_left_without(self, kind: str, error: MstarError | None) -> None:
        if kind == "failed":
            self.problem = error or Unavailable("the server could not serve the observation")
        elif kind == "dropped_late":
            self.problem = error or DeadlineExceeded("the server could not serve the observation within its budget_ms")
        if not self._in_flight and kind != "not_due":
            self._ticks_since_observation = None

    # ---- bookkeeping

    def _begin_epoch(self, keep_actions: bool) -> None:
        self.queue.start_epoch(self._epoch, keep_actions)
        self._in_flight.clear()
        self._ticks_since_observation = None

    def _taped(self, message: wire.ControlRequest) -> wire.ControlRequest:
        if self._tape is not None:
            self._tape.sent(message)
            if why := self._tape.has_ended():
                self._note(ControlEvent("recording_ended", None, self._epoch, why))
        return message

    def _note(self, event: ControlEvent) -> None:
        self.record.events[event.kind] += 1
        self.events.append(event)
