"""The asyncio side of Robot.Control. It belongs to the event loop it was opened on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from mstar_rt.client import arguments, requests
from mstar_rt.client.channel import Connection
from mstar_rt.client.control.action_queue import RobotAction
from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.observation import Picture, Seen
from mstar_rt.client.control.results import ActionChunk, ControlEvent, ControlStats
from mstar_rt.client.control.robot_schema import PolicyInfo, policy_of
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.client.failures import error_from_call, translated
from mstar_rt.client.messages import Numbers
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import DeadlineExceeded, FailedPrecondition, Internal, MstarError, Unavailable
from mstar_rt.freed_memory import keep_freed_memory
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.control_pb2_grpc import RobotStub

CLOSE_TIMEOUT_S = 1.0
"""How long an orderly end may take before the connection is simply dropped."""


class AsyncControlSession:
    """See `session.ControlSession`. To be used in `async with`, which opens and closes it."""

    def __init__(self, connection: Connection, settings: ControlSettings, clock: Clock | None = None) -> None:
        self._connection = connection
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self._opened: ControlState | None = None
        self._closed = False
        self._loop_has_turned = True
        self._news = asyncio.Event()
        self._to_send = asyncio.Event()

    async def __aenter__(self) -> AsyncControlSession:
        keep_freed_memory()
        request = requests.describe(self._settings.model, None)
        with translated(self._connection.address):
            response = await self._connection.runtime.DescribeModel(request, timeout=self._settings.open_timeout_s)
        self._opened = state = ControlState(
            self._settings, policy_of(response, self._settings.model), self._clock, self._connection.address
        )
        self._running = asyncio.create_task(self._run(state))
        try:
            await self._until(lambda: state.connected)
        except BaseException:
            await self._drop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- the robot

    async def act(
        self,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> RobotAction:
        """See `ControlSession.act`. It waits for nothing, but gives the event loop one turn where the caller has not
        done so since the last call: a loop that only acts does not starve the connection.
        """
        if not self._loop_has_turned:
            await asyncio.sleep(0)
        action = self._state.act(Seen(images, state, masked_cameras, noise))
        self._to_send.set()
        self._loop_has_turned = False
        asyncio.get_running_loop().call_soon(self._turned)
        return action

    async def act_in_lockstep(
        self,
        timeout_s: float,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> RobotAction:
        """See `ControlSession.act_in_lockstep`."""
        waiting_s = arguments.waiting_s(timeout_s)
        seq = self._state.observe_in_lockstep(Seen(images, state, masked_cameras, noise))
        self._to_send.set()
        if seq is not None:
            await self.wait_for_chunk(seq, waiting_s)
        return self._state.take()

    async def send(
        self,
        images: Mapping[str, Picture],
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> int:
        seq = self._state.send(Seen(images, state, masked_cameras, noise))
        self._to_send.set()
        return seq

    async def wait_for_first_action(
        self,
        timeout_s: float,
        images: Mapping[str, Picture] | None = None,
        state: Numbers | None = None,
        *,
        masked_cameras: Sequence[str] = (),
        noise: Numbers | None = None,
    ) -> None:
        session = self._state
        waiting_s = arguments.waiting_s(timeout_s)
        if images is not None and not session.has_answer:
            session.send(Seen(images, state, masked_cameras, noise))
            self._to_send.set()
        try:
            async with asyncio.timeout(waiting_s):
                await self._until(session.first_action_has_come)
        except TimeoutError:
            raise DeadlineExceeded(f"no action has come within {timeout_s} s") from None

    async def wait_for_chunk(self, seq: int, timeout_s: float) -> ActionChunk:
        """See `ControlSession.wait_for_chunk`."""
        session = self._state
        waiting_s = arguments.waiting_s(timeout_s)
        try:
            async with asyncio.timeout(waiting_s):
                await self._until(lambda: session.is_answered(seq))
        except TimeoutError:
            raise DeadlineExceeded(f"observation {seq} was not answered within {timeout_s} s") from None
        assert session.latest is not None
        return session.latest

    async def set_instruction(self, instruction: str) -> None:
        self._state.set_instruction(instruction)
        self._to_send.set()

    async def reset(self, instruction: str | None = None, *, seed: int | None = None) -> None:
        self._state.reset(instruction, seed)
        self._to_send.set()

    # ---- what is known

    def latest(self) -> ActionChunk | None:
        return self._state.latest

    @property
    def events(self) -> list[ControlEvent]:
        return list(self._known.events)

    @property
    def stats(self) -> ControlStats:
        return self._known.record.snapshot()

    @property
    def policy(self) -> PolicyInfo:
        return self._known.policy

    @property
    def session_id(self) -> str:
        return self._known.session_id

    @property
    def connected(self) -> bool:
        return self._known.connected

    async def close(self) -> None:
        """Idempotent. The server is told, if it still listens."""
        if self._closed or self._opened is None:
            return
        self._closed = True
        if self._opened.connected:
            self._opened.outbox.command(wire.ControlRequest(close=wire.CloseControl()))
            self._to_send.set()
            await asyncio.wait((self._running,), timeout=CLOSE_TIMEOUT_S)
        await self._drop()

    # ---- the connection

    @property
    def _state(self) -> ControlState:
        """Raises:  FailedPrecondition: not open.  MstarError: it has ended for good."""
        self._connection.check_open()
        if self._closed:
            raise FailedPrecondition(f"this session at {self._connection.address} is closed: open another one")
        known = self._known
        if known.fault is not None:
            raise known.fault
        return known

    @property
    def _known(self) -> ControlState:
        if self._opened is None:
            raise FailedPrecondition("the session is not open: use it inside `async with`")
        return self._opened

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Raises:  MstarError: the session has ended meanwhile."""
        while not holds():
            await self._news.wait()
            _ = self._state

    def _turned(self) -> None:
        self._loop_has_turned = True

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _run(self, state: ControlState) -> None:
        while not self._connection.closed:
            error = await self._one_connection(state)
            delay_s = None if self._closed else state.lost(error)
            self._changed()
            if delay_s is None:
                return
            await asyncio.sleep(delay_s)

    async def _one_connection(self, state: ControlState) -> MstarError:
        """From its beginning to its end; returns why it ended."""
        channel = self._connection.new_channel()
        call: Any = RobotStub(channel).Control()
        writing = asyncio.create_task(self._write(call, state, state.connecting()))
        reading = asyncio.create_task(self._read(call, state))
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=state.interval_s)
                error = state.pulse()
                if self._connection.closed or error is not None:
                    return error or Unavailable("the client is closed")
                self._to_send.set()
            return reading.result()
        finally:
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)
            call.cancel()
            await channel.close()

    async def _read(self, call: Any, state: ControlState) -> MstarError:
        try:
            async for response in call:
                state.received(response)
                self._to_send.set()
                self._changed()
        except grpc.RpcError as error:
            return error_from_call(error, self._connection.address)
        except MstarError as failure:
            return failure
        except Exception as bug:
            return Internal(f"what the server at {self._connection.address} says cannot be taken in: {bug!r}")
        return Unavailable(f"the server at {self._connection.address} has ended the session")

    async def _write(self, call: Any, state: ControlState, opening: wire.ControlRequest) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reading side says why
            await call.write(opening)
            while True:
                await self._to_send.wait()
                self._to_send.clear()
                while state.connected and (message := state.next_message()) is not None:
                    await call.write(message)

    async def _drop(self) -> None:
        self._closed = True
        self._known.connected = False
        self._changed()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.to_thread(self._known.close)
