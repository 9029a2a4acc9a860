"""One command of a session while it waits for its turn and runs, and how its client takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum, auto

from mstar_rt.errors import Cancelled

TAKEN_BACK = "the command was taken back while it ran"


class Stage(Enum):
    WAITING = auto()
    RUNNING = auto()
    WRITING = auto()
    ENDED = auto()


@dataclass
class Turn:
    """Taking back cancels the task only while it waits for the runtime: before its first step it would end without an
    answer, and gRPC cannot start another write while one that was cancelled is under way.
    """

    stage: Stage = Stage.WAITING
    cancelled: bool = False
    task: asyncio.Task[None] | None = None
    _interrupted: bool = False

    def begin(self) -> None:
        """Raises:  Cancelled: it was taken back meanwhile."""
        if self.cancelled:
            raise Cancelled("the command was taken back before it started")
        self.stage = Stage.RUNNING

    async def write(self, writing: Awaitable[None], last: bool) -> None:
        """Wait for an answer to be written, the `last` one or another.

        Raises:  Cancelled: it was taken back meanwhile.
        """
        self.stage = Stage.ENDED if last else Stage.WRITING
        await writing
        if not last:
            self.stage = Stage.RUNNING
            if self.cancelled:
                raise Cancelled(TAKEN_BACK)

    def take_back(self) -> bool:
        """False if it has been answered to the end."""
        if self.stage is Stage.ENDED:
            return False
        if self.stage is Stage.RUNNING and not self.cancelled:
            assert self.task is not None
            self.task.cancel()
            self._interrupted = True
        self.cancelled = True
        return True

    def why_interrupted(self) -> Cancelled:
        """What to answer on a CancelledError.

        Raises:  CancelledError: it comes from the end of the session, so that there is nobody to answer.
        """
        assert self.task is not None
        if not self._interrupted or self.task.cancelling() > 1:
            raise asyncio.CancelledError
        return Cancelled(TAKEN_BACK)
