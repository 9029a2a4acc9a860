"""Requests that nobody has ended after their deadline: a worker that hangs must not hold its caller for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mstar_rt.clock import Clock
from mstar_rt.errors import DeadlineExceeded, MstarError
from mstar_rt.server.request_stream import RequestStream

ANSWER_GRACE_S = 5.0
"""How long after its deadline a request may still be answered: an anytime plan may overrun its budget by one iteration,
the one that runs when it is spent. Whatever is silent for longer hangs.
"""


class AnswerWatch:
    """Gives up streams that have no end `grace_s` after their deadline on `clock`: `give_up(stream, error)`."""

    def __init__(self, clock: Clock, grace_s: float, give_up: Callable[[RequestStream, MstarError], None]) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._give_up = give_up
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, stream: RequestStream, deadline_ns: int) -> None:
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9 + self._grace_s
        timer = asyncio.get_running_loop().call_later(max(remaining_s, 0.0), self._overdue, stream)
        self._timers[stream.request_id] = timer

    def stop(self, request_id: str) -> None:
        """Without effect on a request that is not watched."""
        if (timer := self._timers.pop(request_id, None)) is not None:
            timer.cancel()

    def due_in_s(self) -> list[float]:
        """Seconds until each watched request is given up."""
        now = asyncio.get_running_loop().time()
        return [timer.when() - now for timer in self._timers.values()]

    def _overdue(self, stream: RequestStream) -> None:
        if not stream.ended:
            late = f"no answer {self._grace_s:g} s after the deadline of this request; the worker may be stuck"
            self._give_up(stream, DeadlineExceeded(late))
