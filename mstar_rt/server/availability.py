"""What the server takes: models that serve, until it drains, until it closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

from mstar_rt.errors import NotFound, Unavailable, nearest
from mstar_rt.message import ServingState

RETRY_S = 1.0
RETRY_AFTER_DRAIN_S = 5.0
"""Whoever restarts a server that drains needs a few seconds for it; another server can be asked at once."""


def draining(what: str = "takes nothing new") -> Unavailable:
    """What new work is told, and what is left when the time to drain is over."""
    error = Unavailable(
        f"this server is draining and {what}: use another one, or try again in {RETRY_AFTER_DRAIN_S:g} s"
    )
    error.retry_after_s = RETRY_AFTER_DRAIN_S
    return error


class Availability:
    """State of every model, and of the server itself. `on_changed` is awaited after each change. `starts_in_s` knows
    when the workers that a model cannot do without are started again; 0: they run, or nobody knows."""

    def __init__(self, models: Collection[str]) -> None:
        self.states = {model: ServingState(model, False, "it is starting") for model in models}
        self.draining = False
        self.on_changed: Callable[[], Awaitable[None]] | None = None
        self.starts_in_s: Callable[[str], float] = lambda model: 0.0
        self._news = asyncio.Condition()
        self._closed = False
        self._waiting: set[asyncio.Timeout] = set()

    def check(self, model: str, warmup: bool = False) -> None:
        """Raises:  NotFound.  Unavailable: draining, or the model has not warmed up or lacks a worker that it
        cannot do without; for a warm-up that is no matter."""
        if model not in self.states:
            raise NotFound(f"no model {model!r} is served, {nearest(model, self.states)}")
        if self.draining:
            raise draining()
        state = self.states[model]
        if not state.serving and not warmup:
            why, again_s = state.reason or "it is warming up", max(RETRY_S, self.starts_in_s(model))
            error = Unavailable(f"model {model!r} is not serving: {why}; try again in {again_s:.2g} s")
            error.retry_after_s = again_s
            raise error

    async def wait_until_serving(self) -> None:
        """Return once every model serves."""
        async with self._news:
            await self._news.wait_for(lambda: all(state.serving for state in self.states.values()))

    async def wait_for(self, model: str, timeout_s: float) -> None:
        """Return once the model serves, or the server drains, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: self.draining or self.states[model].serving)

    async def update(self, state: ServingState) -> None:
        self.states[state.model] = state
        await self._changed()

    async def drain(self) -> None:
        """Nothing new from now on."""
        self.draining = True
        await self._changed()

    # ---- the end of idle sessions

    def close(self) -> None:
        """End what waits inside `until_closed`, now and from now on."""
        self._closed = True
        for waiting in self._waiting:
            waiting.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def until_closed(self) -> AsyncIterator[None]:
        """Waiting for a client that may have nothing to say: ends with Unavailable when the server closes."""
        try:
            async with asyncio.timeout(0.0 if self._closed else None) as waiting:
                self._waiting.add(waiting)
                try:
                    yield
                finally:
                    self._waiting.discard(waiting)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise draining("has ended this session") from None

    async def _changed(self) -> None:
        async with self._news:
            self._news.notify_all()
        if self.on_changed is not None:
            await self.on_changed()
