"""The chunks of one stream, formed from its items as they arrive.

Window k of the policy is ready when `stop` items have arrived. The tail is the same for all policies: once it is known
that the stream has n items, windows are cut off at n and become ready when those n are there; the first whose new items
reach n is the final chunk. Where all n were handed out as new before the end was known, the final chunk is empty. There
is always exactly one final chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from mstar_rt.graph.chunk_policy import ChunkPolicy, ChunkWindow


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a node reads from a stream at a time. `start` is the absolute index of `items[0]`; the items are
    `num_context` that earlier chunks gave as new, then `num_new`, then `num_lookahead` that later ones will."""

    items: tuple[Any, ...]
    start: int
    num_context: int
    num_new: int
    num_lookahead: int
    final: bool

    @property
    def new(self) -> tuple[Any, ...]:
        return self.items[self.num_context : self.num_context + self.num_new]


class StreamBuffer:
    """Items in, chunks out. Keeps no item that no later window holds, and never looks at one.

    It takes all that it is given: whoever feeds it holds the producer back.
    """

    __slots__ = ("_ended", "_items", "_next", "_num_pushed", "_num_taken", "_policy", "_start", "_total")

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._items: list[Any] = []
        self._start = 0  # absolute index of _items[0]
        self._num_pushed = 0
        self._num_taken = 0
        self._total: int | None = None
        self._ended = False  # the final chunk was taken
        self._next = policy.window(0)

    def push(self, item: Any) -> None:
        """The next item, in order."""
        assert self._total is None or self._num_pushed < self._total, "an item after the end of its stream"
        self._items.append(item)
        self._num_pushed += 1

    def finish(self, num_items: int | None = None) -> None:
        """The stream ends: after `num_items`, which may not all be there yet, or else with those that are."""
        assert self._total is None, "a stream ends once"
        self._total = self._num_pushed if num_items is None else num_items
        assert self._total >= self._num_pushed, "an item after the end of its stream"
        if self._next.new_start >= self._total:
            self._items.clear()

    def take(self) -> StreamChunk | None:
        """The next chunk that is ready, in order; None if there is none."""
        window, total = self._next, self._total
        if self._ended:
            return None
        if total is None:
            if self._num_pushed < window.stop:
                return None
            return self._cut(window, False)
        if self._num_pushed < min(window.stop, total):
            return None
        if window.new_start >= total:
            self._end()
            return StreamChunk((), total, 0, 0, 0, final=True)
        new_stop, stop = min(window.new_stop, total), min(window.stop, total)
        return self._cut(ChunkWindow(window.start, window.new_start, new_stop, stop), window.new_stop >= total)

    @property
    def num_held(self) -> int:
        """Items kept for chunks that are still to be taken."""
        return len(self._items)

    def _cut(self, window: ChunkWindow, final: bool) -> StreamChunk:
        chunk = StreamChunk(
            items=tuple(self._items[window.start - self._start : window.stop - self._start]),
            start=window.start,
            num_context=window.new_start - window.start,
            num_new=window.new_stop - window.new_start,
            num_lookahead=window.stop - window.new_stop,
            final=final,
        )
        if final:
            self._end()
        else:
            self._num_taken += 1
            self._next = self._policy.window(self._num_taken)
            del self._items[: self._next.start - self._start]
            self._start = self._next.start
        return chunk

    def _end(self) -> None:
        self._num_taken += 1
        self._ended = True
        self._items.clear()


def num_chunks(policy: ChunkPolicy, num_items: int, done: bool) -> int:
    """How many chunks a buffer has formed after so many items; `done`: the last of them came with the news that it is.

    An end that becomes known only after all items were taken as new adds one more, the empty final chunk.
    """

    def is_formed(index: int) -> bool:
        if done:
            return index == 0 or policy.window(index).new_start < num_items
        return policy.window(index).stop <= num_items

    return bisect_left(range(max(1, num_items)), True, key=lambda index: not is_formed(index))
