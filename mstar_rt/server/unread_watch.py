"""Answers that pile up because their client does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mstar_rt.errors import MstarError, ResourceExhausted
from mstar_rt.server.request_stream import RequestStream

UNREAD_PATIENCE_S = 1.0
BURST_FACTOR = 4
"""A client that reads may have that many times the bound waiting: much can be made at once, and a network is slow."""


class UnreadWatch:
    """Gives up a running stream of which more than `max_bytes` wait and nothing is read for `patience_s`, or of which
    BURST_FACTOR times as much waits, read or not. One emission alone may have any size."""

    def __init__(
        self,
        max_bytes: int,
        give_up: Callable[[RequestStream, MstarError], None],
        patience_s: float = UNREAD_PATIENCE_S,
    ) -> None:
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._give_up = give_up
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def look(self, stream: RequestStream) -> bool:
        """Something came: whether so much waits now that its reader should have a turn."""
        if not self._is_too_much(stream):
            return False
        if stream.num_unread_bytes > BURST_FACTOR * self._max_bytes:
            self._end(stream)
        elif stream.request_id not in self._timers:
            self._wait(stream)
        return True

    def stop(self, request_id: str) -> None:
        """Without effect on a request that is not watched."""
        if (timer := self._timers.pop(request_id, None)) is not None:
            timer.cancel()

    def _is_too_much(self, stream: RequestStream) -> bool:
        return stream.num_unread > 1 and stream.num_unread_bytes > self._max_bytes

    def _wait(self, stream: RequestStream) -> None:
        loop = asyncio.get_running_loop()
        self._timers[stream.request_id] = loop.call_later(self._patience_s, self._look_again, stream, stream.num_read)

    def _look_again(self, stream: RequestStream, num_read: int) -> None:
        del self._timers[stream.request_id]
        if not self._is_too_much(stream):
            return
        if stream.num_read == num_read:
            self._end(stream)
        else:
            self._wait(stream)

    def _end(self, stream: RequestStream) -> None:
        unread_mb, max_mb = stream.num_unread_bytes / 2**20, self._max_bytes / 2**20
        self._give_up(
            stream,
            ResourceExhausted(
                f"the client does not read fast enough: {unread_mb:.3g} MB of this answer wait for it, "
                f"server.max_unread_mb is {max_mb:.3g}: read faster, or raise it"
            ),
        )
        stream.drop_unread()
