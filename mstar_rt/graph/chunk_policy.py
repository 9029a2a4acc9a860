"""How a stream is cut into chunks: which items go together, and which of them are new.

A stream is a sequence of items, counted from 0. A policy cuts it into windows. The ranges of new items follow one
another without gap or overlap, so every item is new in exactly one chunk, whatever else is handed out again around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from mstar_rt.errors import GraphError


@dataclass(frozen=True, slots=True)
class ChunkWindow:
    """Absolute item indices: context from `start`, new items from `new_start` to `new_stop`, lookahead up to `stop`."""

    start: int
    new_start: int
    new_stop: int
    stop: int


class ChunkPolicy(ABC):
    """How a stream is cut. Immutable, and equal to another that cuts alike."""

    @abstractmethod
    def window(self, index: int) -> ChunkWindow:
        """Window `index` of an endless stream. No window starts or stops before the one before it."""


@dataclass(frozen=True)
class _RampedChunkPolicy(ChunkPolicy):
    """Chunk k has `strides[k]` new items (the last stride repeats), `left` of context and `right` of lookahead."""

    _left: int = field(init=False, repr=False, compare=False)
    _right: int = field(init=False, repr=False, compare=False)
    _stops: tuple[int, ...] = field(init=False, repr=False, compare=False)  # of the new items, while strides differ
    _stride: int = field(init=False, repr=False, compare=False)

    def window(self, index: int) -> ChunkWindow:
        new_start, new_stop = self._new_stop(index - 1), self._new_stop(index)
        return ChunkWindow(max(0, new_start - self._left), new_start, new_stop, new_stop + self._right)

    def _ramp(self, left: int, right: int, strides: Sequence[int]) -> None:
        object.__setattr__(self, "_left", left)
        object.__setattr__(self, "_right", right)
        object.__setattr__(self, "_stops", tuple(accumulate(strides)))
        object.__setattr__(self, "_stride", strides[-1])

    def _new_stop(self, index: int) -> int:
        beyond = index + 1 - len(self._stops)
        if beyond > 0:
            return self._stops[-1] + beyond * self._stride
        return self._stops[index] if index >= 0 else 0


@dataclass(frozen=True)
class FixedChunkPolicy(_RampedChunkPolicy):
    """`k` new items at a time and nothing else. Tail: what is left, 1 to k items."""

    k: int

    def __post_init__(self) -> None:
        _check_count(self, "k", self.k, 1)
        self._ramp(0, 0, (self.k,))


@dataclass(frozen=True)
class SlidingWindowChunkPolicy(_RampedChunkPolicy):
    """`window` items at a time, the next window `stride` further on: from the second chunk on the first `window -
    stride` items are context. Tail: the last window, cut off at the end; none for context alone."""

    window_size: int
    stride: int

    def __init__(self, window: int, stride: int) -> None:
        object.__setattr__(self, "window_size", window)
        object.__setattr__(self, "stride", stride)
        _check_count(self, "window", window, 1)
        _check_count(self, "stride", stride, 1)
        if stride > window:
            raise GraphError(
                f"SlidingWindowChunkPolicy has stride {stride} over its window {window}, so items between two windows "
                f"would be lost: make the stride at most {window}"
            )
        self._ramp(window - stride, 0, (window, stride))

    def __repr__(self) -> str:
        return f"SlidingWindowChunkPolicy(window={self.window_size}, stride={self.stride})"


@dataclass(frozen=True)
class LeftContextChunkPolicy(_RampedChunkPolicy):
    """`chunk` new items at a time behind up to `left_context` earlier ones, fewer where the stream has not so many yet.
    Tail: what is left, 1 to `chunk` items, with its context."""

    chunk: int
    left_context: int

    def __post_init__(self) -> None:
        _check_count(self, "chunk", self.chunk, 1)
        _check_count(self, "left_context", self.left_context, 0)
        self._ramp(self.left_context, 0, (self.chunk,))


@dataclass(frozen=True)
class ReceptiveFieldChunkPolicy(_RampedChunkPolicy):
    """For a network whose output at one item depends on `left` items before it and `right` after it, so that streamed
    output equals offline output: every new item has its whole field, cut off only where the stream begins and ends.

    Chunk k has `strides[k]` new items, the last stride repeats: short first for latency, long later for throughput.
    Tail: with the end known no lookahead is waited for, so several chunks may become ready at once.
    """

    left: int
    right: int
    strides: tuple[int, ...] = (4, 8, 16)

    def __post_init__(self) -> None:
        _check_count(self, "left", self.left, 0)
        _check_count(self, "right", self.right, 0)
        if not isinstance(self.strides, tuple | list) or not self.strides:
            raise GraphError(
                f"ReceptiveFieldChunkPolicy has strides {self.strides!r}, expected at least one, e.g. (4, 8, 16)"
            )
        for stride in self.strides:
            _check_count(self, "a stride", stride, 1)
        object.__setattr__(self, "strides", tuple(self.strides))
        self._ramp(self.left, self.right, self.strides)


def check_policy(policy: object, where: str) -> None:
    """Refuse what is no policy, and a policy of the model's own whose windows would lose or repeat items."""
    if not isinstance(policy, ChunkPolicy):
        raise GraphError(f"{where} has policy {policy!r}, expected a ChunkPolicy, e.g. FixedChunkPolicy(4)")
    before = ChunkWindow(0, 0, 0, 0)
    for index in range(0 if isinstance(policy, _RampedChunkPolicy) else 32):
        window = policy.window(index)
        if window.new_start != before.new_stop:
            raise GraphError(
                f"{where} has policy {policy!r}, whose window {index} begins its new items at {window.new_start}, "
                f"expected {before.new_stop}, where those of the window before end"
            )
        ordered = before.start <= window.start <= window.new_start < window.new_stop <= window.stop
        if not ordered or window.stop < before.stop:
            raise GraphError(
                f"{where} has policy {policy!r}, whose window {index} is {window}, expected start <= new_start < "
                f"new_stop <= stop, and neither start nor stop before those of the window before"
            )
        before = window


def _check_count(policy: ChunkPolicy, name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise GraphError(f"{type(policy).__name__} has {name} {value!r}, expected an integer of at least {least}")
