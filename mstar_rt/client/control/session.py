"""The blocking side of Robot.Control. One thread of its own reads, another one watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from mstar_rt.client import arguments, requests
from mstar_rt.client.channel import Connection
from mstar_rt.client.control.action_queue import RobotAction
from mstar_rt.client.control.asynchronous_session import CLOSE_TIMEOUT_S
from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.observation import Picture, Seen
from mstar_rt.client.control.results import ActionChunk, ControlEvent, ControlStats
from mstar_rt.client.control.robot_schema import PolicyInfo, policy_of
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.client.failures import translated
from mstar_rt.client.messages import Numbers
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import DeadlineExceeded, FailedPrecondition, Internal, MstarError, Unavailable
from mstar_rt.freed_memory import keep_freed_memory
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.control_pb2_grpc import RobotStub


class ControlSession:
    """A robot's session, open from when it is made; to be used in `with`. None of its methods waits for the network,
    except `wait_for_first_action` and `close`, so a control loop keeps its period whatever the server does.

    When the connection or the server is lost, the actions that have come are executed, then the robot is told to
    hold, then to stop; meanwhile the session connects again, with a greater epoch. What cannot be mended so is raised
    by the next call.
    """

    def __init__(self, connection: Connection, settings: ControlSettings, clock: Clock | None = None) -> None:
        self._connection = connection
        keep_freed_memory()
        request = requests.describe(settings.model, None)
        with translated(connection.address):
            response = connection.runtime.DescribeModel(request, timeout=settings.open_timeout_s)
        self._session = ControlState(
            settings, policy_of(response, settings.model), clock or MonotonicClock(), connection.address
        )
        self._lock = threading.Lock()  # guards all that follows and the state
        self._news = threading.Condition(self._lock)
        self._to_send = threading.Condition(self._lock)
        self._ending = threading.Condition(self._lock)
        self._closed = False
        self._dropped = False
        self._ended: MstarError | None = None
        """Why the present connection has ended."""
        self._number = 0
        """Of the present connection: what belongs to an earlier one has no effect."""
        self._running = threading.Thread(target=self._run, name="mstar-control", daemon=True)
        self._running.start()
        try:
            with self._lock:
                self._until(lambda: self._session.connected, None)
        except BaseException:
            self._drop()
            raise

    def __enter__(self) -> ControlSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the robot

    def act(
        self,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> RobotAction:
        """One control tick: what the robot sees now goes to the policy if an observation is due, and the action that is
        due comes back. Call it once every 1/control_hz seconds, and do what it says.

        An observation is due when none is on its way, with `replan_every` when that many ticks are over since the
        last one.

        Args:
            images: uint8 [height, width, 3], RGB, or a whole JPEG or PNG file, per camera. They are copied.
            state: [S] in robot units.
            masked_cameras: those that are blind now, and so are not in `images`.
            noise: the policy's initial noise instead of one from the seed.
        Raises:  InvalidArgument: an observation is due and this one does not fit the schema.
                 MstarError: the session has ended for good.
        """
        with self._lock:
            action = self._state.act(Seen(images, state, masked_cameras, noise))
            self._to_send.notify()
            return action

    def act_in_lockstep(
        self,
        timeout_s: float,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> RobotAction:
        """One control tick of a world that stands still meanwhile, as a simulator can: where `replan_every` actions of
        a chunk are executed (each one, without), the next chunk is waited for. With a seed, and with a `delay` of 0
        where chunks go on from each other, what comes back depends on no clock. Not to be mixed with `act`.

        Raises:  DeadlineExceeded: not within `timeout_s`.  MstarError: what became of the observation.
        """
        waiting_s = arguments.waiting_s(timeout_s)
        with self._lock:
            seq = self._state.observe_in_lockstep(Seen(images, state, masked_cameras, noise))
            self._to_send.notify()
            if seq is not None and not self._until(lambda: self._state.is_answered(seq), waiting_s):
                raise DeadlineExceeded(f"observation {seq} was not answered within {timeout_s} s")
            return self._state.take()

    def send(
        self,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> int:
        """Send an observation now, due or not; returns its seq, by which `latest` tells what answers it.

        Raises:  Unavailable: there is no connection now.
        """
        with self._lock:
            seq = self._state.send(Seen(images, state, masked_cameras, noise))
            self._to_send.notify()
            return seq

    def wait_for_first_action(
        self,
        timeout_s: float,
        images: Mapping[str, Picture] | None = None,
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> None:
        """Before the loop, and after `reset`: return when the episode's first chunk is there. With `images`, they are
        sent first; without, `act` or `send` has done that.

        Raises:  DeadlineExceeded: not within `timeout_s`.  MstarError: what became of the observation.
        """
        waiting_s = arguments.waiting_s(timeout_s)
        with self._lock:
            if images is not None and not self._state.has_answer:
                self._state.send(Seen(images, state, masked_cameras, noise))
                self._to_send.notify()
            if not self._until(self._state.first_action_has_come, waiting_s):
                raise DeadlineExceeded(f"no action has come within {timeout_s} s")

    def wait_for_chunk(self, seq: int, timeout_s: float) -> ActionChunk:
        """For a loop that stands still meanwhile: the newest chunk, once it answers what `send` has sent as `seq`, or a
        newer observation.

        Raises:  DeadlineExceeded: not within `timeout_s`.  MstarError: what became of the observation.
        """
        waiting_s = arguments.waiting_s(timeout_s)
        with self._lock:
            if not self._until(lambda: self._state.is_answered(seq), waiting_s):
                raise DeadlineExceeded(f"observation {seq} was not answered within {timeout_s} s")
            assert self._session.latest is not None
            return self._session.latest

    def set_instruction(self, instruction: str) -> None:
        """From the next observation on; `RobotAction.instruction` says when its actions come."""
        with self._lock:
            self._state.set_instruction(instruction)
            self._to_send.notify()

    def reset(self, instruction: str | None = None, *, seed: int | None = None) -> None:
        """A new episode: the actions of the last one are dropped at once, and what is still on its way for it never
        counts. None: instruction and seed stay as they are.
        """
        with self._lock:
            self._state.reset(instruction, seed)
            self._to_send.notify()

    # ---- what is known

    def latest(self) -> ActionChunk | None:
        """The newest chunk that came in this episode."""
        with self._lock:
            return self._state.latest

    @property
    def events(self) -> list[ControlEvent]:
        """The newest 10000, oldest first."""
        with self._lock:
            return list(self._session.events)

    @property
    def stats(self) -> ControlStats:
        with self._lock:
            return self._session.record.snapshot()

    @property
    def policy(self) -> PolicyInfo:
        return self._session.policy

    @property
    def session_id(self) -> str:
        """The server's name for it; another one after each new connection."""
        return self._session.session_id

    @property
    def connected(self) -> bool:
        return self._session.connected

    def close(self) -> None:
        """Idempotent. The server is told, if it still listens; that may take CLOSE_TIMEOUT_S."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._session.connected:
                self._session.outbox.command(wire.ControlRequest(close=wire.CloseControl()))
                self._to_send.notify_all()
                self._ending.wait_for(lambda: self._ended is not None, CLOSE_TIMEOUT_S)
        self._drop()

    # ---- the connection

    @property
    def _state(self) -> ControlState:
        """Raises:  FailedPrecondition: closed.  MstarError: it has ended for good."""
        self._connection.check_open()
        if self._closed:
            raise FailedPrecondition(f"this session at {self._connection.address} is closed: open another one")
        if self._session.fault is not None:
            raise self._session.fault
        return self._session

    def _until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """False: the time is over.

        Raises:  MstarError: the session has ended meanwhile.
        """
        held = self._news.wait_for(lambda: self._session.fault is not None or self._closed or holds(), timeout_s)
        _ = self._state
        return held

    def _run(self) -> None:
        while not self._closed and not self._connection.closed:
            error = self._one_connection()
            with self._lock:
                delay_s = None if self._closed else self._session.lost(error)
                self._news.notify_all()
                if delay_s is None:
                    return
                self._ending.wait_for(lambda: self._closed, delay_s)

    def _one_connection(self) -> MstarError:
        """From its beginning to its end; returns why it ended."""
        channel = self._connection.new_channel()
        with self._lock:
            self._ended = None
            self._number += 1
            number, opening = self._number, self._session.connecting()
        call: Any = RobotStub(channel).Control(self._requests(number, opening))
        threading.Thread(target=self._read, args=(call, number), name="mstar-control-read", daemon=True).start()
        try:
            return self._watch()
        finally:
            with self._lock:
                self._number += 1
                self._to_send.notify_all()
            call.cancel()
            channel.close()

    def _watch(self) -> MstarError:
        with self._lock:
            while True:
                self._ending.wait_for(lambda: self._ended is not None or self._dropped, self._session.interval_s)
                if self._dropped or self._connection.closed:
                    self._session.connected = False
                    return Unavailable("the session is closed")
                error = self._ended or self._session.pulse()
                if error is not None:
                    return error
                self._to_send.notify()

    def _read(self, call: Any, number: int) -> None:
        try:
            with translated(self._connection.address):
                for response in call:
                    with self._lock:
                        if number != self._number:
                            return
                        self._session.received(response)
                        self._to_send.notify()
                        self._news.notify_all()
            error: MstarError = Unavailable(f"the server at {self._connection.address} has ended the session")
        except MstarError as failure:
            error = failure
        except Exception as bug:
            error = Internal(f"what the server at {self._connection.address} says cannot be taken in: {bug!r}")
        with self._lock:
            if number == self._number:
                self._ended = error
                self._ending.notify_all()

    def _requests(self, number: int, opening: wire.ControlRequest) -> Iterator[wire.ControlRequest]:
        """What grpc sends; it asks for the next when the last one is on its way."""
        yield opening
        while True:
            with self._lock:
                self._to_send.wait_for(
                    lambda: number != self._number or (self._session.connected and bool(self._session.outbox))
                )
                if number != self._number:
                    return
                message = self._session.next_message()
            assert message is not None
            yield message

    def _drop(self) -> None:
        with self._lock:
            self._closed = self._dropped = True
            self._session.connected = False
            self._ending.notify_all()
            self._news.notify_all()
        self._running.join()
        self._session.close()
