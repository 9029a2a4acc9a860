"""The newest observation of a session, and only that: it is overwritten, never queued."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

Item = TypeVar("Item")


class NewestSlot(Generic[Item]):
    """One writer, one reader, on one event loop."""

    def __init__(self) -> None:
        self._item: Item | None = None
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> Item | None:
        """Returns what is overwritten, which nobody has taken."""
        before, self._item = self._item, item
        self._wake()
        return before

    def put_back(self, item: Item) -> Item | None:
        """What was taken and still has to be done; returns the newer one if there is one, which stays."""
        if self._item is None:
            self._item = item
            return None
        return self._item

    def clear(self) -> Item | None:
        """Returns what nobody will take any more."""
        before, self._item = self._item, None
        return before

    def close(self) -> None:
        """Nothing more is put: `take` gives what there is, then None."""
        self._closed = True
        self._wake()

    async def take(self) -> Item | None:
        """Wait for an item; None once the slot is closed and empty."""
        while self._item is None and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
