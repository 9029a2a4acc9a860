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
    """Gives up streams that have no end `grace_s` after their deadline on `clock`: `give_up(stream, error)`.

    One timer for all, which runs at the first moment at which one that was watched then would be given up: nearly all
    end long before, so that each costs an entry in a table.
    """

    def __init__(self, clock: Clock, grace_s: float, give_up: Callable[[RequestStream, MstarError], None]) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._give_up = give_up
        self._watched: dict[str, tuple[float, RequestStream]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, stream: RequestStream, deadline_ns: int) -> None:
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9 + self._grace_s
        due_s = asyncio.get_running_loop().time() + max(remaining_s, 0.0)
        self._watched[stream.request_id] = (due_s, stream)
        if self._timer is None or due_s < self._timer.when():
            self._look_at(due_s)

    def stop(self, request_id: str) -> None:
        """Without effect on a request that is not watched."""
        self._watched.pop(request_id, None)

    def due_in_s(self) -> list[float]:
        """Seconds until each watched request is given up."""
        now_s = asyncio.get_running_loop().time()
        return [due_s - now_s for due_s, _ in self._watched.values()]

    def _look_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._timer = None
        now_s = max(asyncio.get_running_loop().time(), due_s)
        for request_id, (due_s, stream) in list(self._watched.items()):
            if due_s <= now_s:
                self.stop(request_id)
                if not stream.ended:
                    late = f"no answer {self._grace_s:g} s after the deadline of this request; the worker may be stuck"
                    self._give_up(stream, DeadlineExceeded(late))
        if self._watched and self._timer is None:
            self._look_at(min(due_s for due_s, _ in self._watched.values()))
