"""Opening and closing sessions with the conductor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mstar_rt.errors import MstarError
from mstar_rt.message import CloseSession, Message, OpenSession, ParamField
from mstar_rt.model import ParamValue


@dataclass(frozen=True)
class ControlRate:
    """`rate_hz` runs of a task per second, with these options, each within `deadline_s`, in the place of the session
    that it `takes_over`."""

    task: str
    rate_hz: float
    params: Mapping[str, ParamValue]
    takes_over: str = ""
    deadline_s: float | None = None


class Sessions:
    """`tell` sends to the conductor. A session that was asked for is closed, whatever became of its opening."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def open(self, session_id: str, model: str, client: str = "", control: ControlRate | None = None) -> None:
        """Raises:  what the conductor refuses it with."""
        opening = OpenSession(session_id, model, client)
        if control is not None:
            opening.criticality, opening.task, opening.rate_hz = "control", control.task, control.rate_hz
            opening.params, opening.takes_over = param_fields(control.params), control.takes_over
            opening.deadline_s = control.deadline_s
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening[session_id] = opened
        self._known.add(session_id)
        self._tell(opening)
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


def param_fields(params: Mapping[str, ParamValue]) -> dict[str, ParamField]:
    """Options as a message has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}
