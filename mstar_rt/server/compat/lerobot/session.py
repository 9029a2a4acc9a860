"""One LeRobot client: its control session, and its timesteps in terms of that session's chunks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from mstar_rt.errors import DeadlineExceeded, Internal, MstarError, ResourceExhausted
from mstar_rt.protos import control_pb2 as control_wire
from mstar_rt.server.compat.lerobot.fitting import check_fit, without_task
from mstar_rt.server.compat.lerobot.payloads import PolicyInstructions, TimedObservation
from mstar_rt.server.compat.lerobot.replies import timed_actions
from mstar_rt.server.compat.mapping import Mapping
from mstar_rt.server.compat.robot import ForeignObservation, ForeignRobot
from mstar_rt.server.control.sessions import ControlSessions

PATIENCE_MS = 20_000.0
MAX_UNANSWERED = 1024
"""Observations whose timestep is kept: a chunk can still answer one of them."""


class LeRobotSession:
    """`opened` makes one."""

    def __init__(self, robot: ForeignRobot, mapping: Mapping, given: PolicyInstructions) -> None:
        self._robot = robot
        self._mapping = mapping
        self.given = given
        self._asked: OrderedDict[int, tuple[int, float]] = OrderedDict()  # by seq: timestep and timestamp
        self._last_timestep = 0
        self._patience_ms: float | None = None
        self._newest: tuple[int, int] | None = None  # seq and timestep of the newest chunk that was given out

    @classmethod
    async def opened(
        cls, sessions: ControlSessions, client: str, mapping: Mapping, given: PolicyInstructions
    ) -> LeRobotSession:
        """Raises:  FailedPrecondition: the robot does not fit, with the list of differences.  ResourceExhausted: it is
        not admitted.  Unavailable.
        """
        check_fit(given, mapping)
        robot = ForeignRobot(sessions, client)
        await robot.open(mapping.opening())
        return cls(robot, mapping, given)

    async def observe(self, seen: TimedObservation) -> None:
        """Newest wins. Row 0 of the chunk that answers it will belong to its timestep, as with LeRobot's own server.

        A timestep lower than the one before begins another episode. `must_go` says that the robot stands still: a chunk
        is made whatever the rhythm of the session.

        Raises:  InvalidArgument: it does not fit.  What the session has ended with.
        """
        given = self._mapping.observation(without_task(seen.observation, self._mapping.policy))
        if seen.timestep < self._last_timestep:
            self._asked.clear()
            self._newest = None
            await self._robot.reset()
        self._last_timestep = seen.timestep
        seq = self._robot.submit(self._placed(given, seen), self._patience_ms)
        self._asked[seq] = seen.timestep, seen.timestamp
        if len(self._asked) > MAX_UNANSWERED:
            self._asked.popitem(last=False)

    async def actions(self, timeout_s: float) -> bytes:
        """The pickle of the newest chunk that was not given out yet; b"": there is none in time.

        Raises:  why an observation has no chunk, or what the session has ended with.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return self._pickled(await self._next_chunk())
        except TimeoutError:
            return b""

    @property
    def has_ended(self) -> bool:
        return self._robot.ended is not None

    async def close(self) -> None:
        """Idempotent. The session's place is free when this returns."""
        await self._robot.close()

    def _placed(self, given: ForeignObservation, seen: TimedObservation) -> ForeignObservation:
        """Where the robot is: the action before this timestep was the last one, counted from a chunk that it has.
        Before the first chunk nothing was executed.
        """
        wants_chunk = True if seen.must_go else None
        if self._newest is None:
            return replace(given, executed_index=-1, wants_chunk=wants_chunk)
        seq, timestep = self._newest
        return replace(
            given, executed_index=seen.timestep - timestep - 1, executed_chunk_seq=seq, wants_chunk=wants_chunk
        )

    async def _next_chunk(self) -> control_wire.ActionChunk:
        """One that was made for the last episode, and came when it was over, is passed over.

        RobotClient counts executed actions, not time: a late chunk is of full use to it. So after an observation that
        was too late, the next ones have longer. RobotClient's calls that fail with DEADLINE_EXCEEDED are repeated after
        ever longer pauses, so that is not what it is told.
        """
        while True:
            answer = await self._robot.next_answer()
            if isinstance(answer, DeadlineExceeded):
                if self._patience_ms is not None or "budget_ms" in self._mapping.dialect.options:
                    raise ResourceExhausted(str(answer))
                self._patience_ms = PATIENCE_MS
            elif isinstance(answer, MstarError):
                raise answer
            elif answer.answers_seq in self._asked:
                self._patience_ms = None
                return answer

    def _pickled(self, chunk: control_wire.ActionChunk) -> bytes:
        timestep, timestamp = self._asked[chunk.answers_seq]
        self._newest = chunk.answers_seq, timestep
        while next(iter(self._asked)) != chunk.answers_seq:
            self._asked.popitem(last=False)
        actions = np.concatenate(list(self._mapping.actions(chunk).values()), axis=1)[: self.given.actions_per_chunk]
        if not np.isfinite(actions).all():
            raise Internal("the policy's chunk has numbers that are not finite: nothing was sent")
        period_s = 1 / self._mapping.dialect.control_hz
        return timed_actions(actions, self.given.module, timestep, timestamp, period_s)
