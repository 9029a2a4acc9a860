"""The chunks that a robot was sent in one episode, and where in them it is.

Tick t is the moment at which the robot has executed t actions of the episode. A robot that holds consumes nothing, so
its tick stands still.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import InvalidArgument

MAX_KEPT = 512
"""Chunks that are kept however slowly the robot consumes them."""


@dataclass(frozen=True)
class SentChunk:
    """`actions` [H, A] float32 as sent; `tick` is that of row 0, None if its observation did not say."""

    seq: int
    tick: int | None
    actions: np.ndarray


class SentChunks:
    def __init__(self) -> None:
        self._chunks: OrderedDict[int, SentChunk] = OrderedDict()
        self.num_sent = 0

    @property
    def newest(self) -> SentChunk | None:
        return next(reversed(self._chunks.values())) if self._chunks else None

    def add(self, seq: int, tick: int | None, actions: np.ndarray) -> None:
        """Forgets the chunks that end before `tick`: the robot is past them."""
        self._chunks[seq] = SentChunk(seq, tick, actions)
        self.num_sent += 1
        while len(self._chunks) > MAX_KEPT or self._is_past(next(iter(self._chunks.values())), tick):
            self._chunks.popitem(last=False)

    def tick(self, executed_index: int | None, chunk_seq: int | None) -> int | None:
        """Of an observation that says which action was executed last; None: it does not say, and chunks were sent.

        Raises:  InvalidArgument: there is no such chunk, or it has no such action.
        """
        if executed_index is None:
            if chunk_seq is not None:
                raise InvalidArgument("the observation has executed_chunk_seq without executed_index: give both")
            return 0 if self.newest is None else None
        chunk = self._named(executed_index, chunk_seq)
        if chunk is None:
            return 0
        if not -1 <= executed_index < len(chunk.actions):
            raise InvalidArgument(
                f"executed_index is {executed_index}, but chunk {chunk.seq} has {len(chunk.actions)} actions: expected "
                f"-1 (none of it) to {len(chunk.actions) - 1}"
            )
        if chunk.tick is None:
            raise InvalidArgument(
                f"executed_index refers to chunk {chunk.seq}, whose own observation had none: give it with every "
                "observation of an episode, or with none"
            )
        tick = chunk.tick + executed_index + 1
        if self.newest is not None and self.newest.tick is not None and tick < self.newest.tick:
            raise InvalidArgument(
                f"the observation has executed {tick} actions, but that of chunk {self.newest.seq} had executed "
                f"{self.newest.tick} already: expected at least as many"
            )
        return tick

    def not_executed(self, tick: int) -> np.ndarray | None:
        """[n, A] float32: what the newest chunk holds for `tick` and after, as the robot will find it in its queue;
        None if there is nothing.
        """
        newest = self.newest
        if newest is None or newest.tick is None or not 0 <= tick - newest.tick < len(newest.actions):
            return None
        return newest.actions[tick - newest.tick :]

    def _named(self, executed_index: int, chunk_seq: int | None) -> SentChunk | None:
        if chunk_seq is not None:
            if chunk_seq not in self._chunks:
                raise InvalidArgument(
                    f"executed_chunk_seq is {chunk_seq}, but no chunk of this episode that is still of use answers it"
                )
            return self._chunks[chunk_seq]
        if self.newest is None and executed_index != -1:
            raise InvalidArgument(
                f"executed_index is {executed_index}, but this episode has no chunk yet: expected -1, or none"
            )
        return self.newest

    def _is_past(self, chunk: SentChunk, tick: int | None) -> bool:
        return tick is not None and chunk.tick is not None and chunk.tick + len(chunk.actions) < tick
