"""Opening and closing sessions with the conductor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mstar_rt.errors import MstarError
from mstar_rt.message import CloseSession, Message, OpenSession


class Sessions:
    """`tell` sends to the conductor. A session that was asked for is closed, whatever became of its opening."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def open(self, session_id: str, model: str) -> None:
        """Raises:  what the conductor refuses it with."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening[session_id] = opened
        self._known.add(session_id)
        self._tell(OpenSession(session_id, model))
        try:
            await opened
        except BaseException as error:
            if isinstance(error, MstarError):
                self._known.discard(session_id)
            self.close(session_id)
            raise
        finally:
            del self._opening[session_id]

    def is_opening(self, session_id: str) -> bool:
        return session_id in self._opening

    def resolve(self, session_id: str, error: MstarError | None) -> None:
        """The conductor's answer. Without effect on a session that nobody waits for."""
        opened = self._opening.get(session_id)
        if opened is None or opened.done():
            return
        if error is None:
            opened.set_result(None)
        else:
            opened.set_exception(error)

    def fail_opening(self, error: MstarError) -> None:
        for session_id in list(self._opening):
            self.resolve(session_id, error)

    def close(self, session_id: str) -> None:
        if session_id in self._known:
            self._known.discard(session_id)
            self._tell(CloseSession(session_id))
