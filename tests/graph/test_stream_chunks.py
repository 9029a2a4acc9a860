"""Chunk policies and the buffer: every item new exactly once, whatever the policy, the length and the order of events.

`Declared` is what a policy promises in its own words, worked out here item by item, not from its windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.graph import (
    ChunkPolicy,
    ChunkWindow,
    FixedChunkPolicy,
    LeftContextChunkPolicy,
    ReceptiveFieldChunkPolicy,
    SlidingWindowChunkPolicy,
    StreamBuffer,
    StreamChunk,
    num_chunks,
)

Fixed, Sliding = FixedChunkPolicy, SlidingWindowChunkPolicy
LeftContext, Field = LeftContextChunkPolicy, ReceptiveFieldChunkPolicy
FEW = st.integers(0, 6)
SOME = st.integers(1, 6)


@dataclass(frozen=True)
class Declared:
    """A policy with the numbers of new items of its chunks, and how many items each shows before and after them."""

    policy: ChunkPolicy
    firsts: tuple[int, ...]
    rest: int
    left: int = 0
    right: int = 0

    def new_start(self, index: int) -> int:
        return sum(self.num_new(k) for k in range(index))

    def num_new(self, index: int) -> int:
        return self.firsts[index] if index < len(self.firsts) else self.rest

    def start(self, index: int) -> int:
        return max(0, self.new_start(index) - self.left)

    def stop(self, index: int) -> int:
        return self.new_start(index) + self.num_new(index) + self.right

    @property
    def longest(self) -> int:
        """Items of the longest window."""
        return self.left + max(*self.firsts, self.rest) + self.right


def sliding(window: int, stride: int) -> Declared:
    return Declared(Sliding(window, stride), (window,), stride, left=window - stride)


def receptive(left: int, right: int, strides: tuple[int, ...]) -> Declared:
    return Declared(Field(left, right, strides), strides, strides[-1], left, right)


POLICIES = st.one_of(
    st.builds(lambda k: Declared(Fixed(k), (k,), k), SOME),
    st.builds(lambda stride, more: sliding(stride + more, stride), SOME, FEW),
    st.builds(lambda chunk, left: Declared(LeftContext(chunk, left), (chunk,), chunk, left), SOME, FEW),
    st.builds(receptive, FEW, FEW, st.lists(SOME, min_size=1, max_size=3).map(tuple)),
)
EXAMPLES = [
    Declared(Fixed(1), (1,), 1), Declared(Fixed(4), (4,), 4), sliding(1, 1), sliding(4, 4), sliding(4, 1), sliding(5, 3),
    Declared(LeftContext(3, 0), (3,), 3), Declared(LeftContext(2, 2), (2,), 2, 2), Declared(LeftContext(2, 5), (2,), 2, 5),
    receptive(0, 0, (2,)), receptive(3, 1, (1, 2, 4)), receptive(0, 5, (2,)), receptive(2, 7, (1, 3)),
]  # fmt: skip


@dataclass
class Stream:
    """A buffer under test, with all that was done to it."""

    declared: Declared
    length: int
    buffer: StreamBuffer = field(init=False)
    num_pushed: int = 0
    known: bool = False  # the end is
    num_new_at_end: int = 0  # when the end became known
    chunks: list[StreamChunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = StreamBuffer(self.declared.policy)

    def push(self) -> None:
        self.buffer.push(self.num_pushed)
        self.num_pushed += 1
        self.check()

    def finish(self) -> None:
        early = self.num_pushed < self.length
        self.buffer.finish(self.length) if early else self.buffer.finish()
        self.known, self.num_new_at_end = True, self.num_new
        self.check()

    def take(self) -> bool:
        chunk = self.buffer.take()
        assert (chunk is not None) == self.is_ready(len(self.chunks)), (
            "a chunk comes as soon as it is ready and not before"
        )
        if chunk is not None:
            self.chunks.append(chunk)
        self.check()
        return chunk is not None

    def drain(self) -> None:
        while self.take():
            pass

    @property
    def num_new(self) -> int:
        return sum(chunk.num_new for chunk in self.chunks)

    @property
    def is_over(self) -> bool:
        return bool(self.chunks) and self.chunks[-1].final

    def is_ready(self, index: int) -> bool:
        if self.is_over:
            return False
        needed = self.declared.stop(index)
        if not self.known:
            return self.num_pushed >= needed
        to_come = index == len(self.chunks) or self.declared.new_start(index) < self.length
        return to_come and self.num_pushed >= min(needed, self.length)

    def check(self) -> None:
        """What holds at every moment."""
        nothing_new_left = self.known and self.num_new == self.length
        start = self.declared.start(len(self.chunks))
        assert self.buffer.num_held == (0 if self.is_over or nothing_new_left else self.num_pushed - start)
        if not self.is_ready(len(self.chunks)):
            assert self.buffer.num_held < self.declared.longest
        num_formed = next(k for k in count(len(self.chunks)) if not self.is_ready(k))
        done = self.known and self.num_pushed == self.length
        late = done and self.length > 0 and self.num_new_at_end == self.length
        assert num_formed == num_chunks(self.declared.policy, self.num_pushed, done) + late

    def check_all(self) -> None:
        """What the reader of the whole stream saw."""
        assert [chunk.final for chunk in self.chunks] == [False] * (len(self.chunks) - 1) + [True]
        assert [item for chunk in self.chunks for item in chunk.new] == list(range(self.length))
        seen = 0
        for index, chunk in enumerate(self.chunks):
            assert chunk.items == tuple(range(chunk.start, chunk.start + len(chunk.items)))
            assert len(chunk.items) == chunk.num_context + chunk.num_new + chunk.num_lookahead
            if chunk.num_new:
                self._check_chunk(index, chunk, seen)
            else:
                assert chunk == StreamChunk((), self.length, 0, 0, 0, True)
                assert self.num_new_at_end == self.length, "empty only if nothing new was left for it"
            seen += chunk.num_new

    def _check_chunk(self, index: int, chunk: StreamChunk, seen: int) -> None:
        assert chunk.start + chunk.num_context == seen == self.declared.new_start(index)
        assert chunk.num_context == min(self.declared.left, seen)
        assert chunk.num_new == min(self.declared.num_new(index), self.length - seen)
        assert chunk.num_lookahead == min(self.declared.right, self.length - seen - chunk.num_new)


@settings(max_examples=500)
@given(POLICIES, st.data())
def test_any_order_of_pushes_end_and_takes(declared: Declared, data: Any) -> None:
    stream = Stream(declared, data.draw(st.integers(0, 4 * declared.longest), "length"))
    end_known_after = data.draw(st.integers(0, stream.length), "pushes before the end is known")
    takes = st.integers(0, 3)
    for pushed in range(stream.length + 1):
        if pushed == end_known_after:
            stream.finish()
            for _ in range(data.draw(takes)):
                stream.take()
        if pushed < stream.length:
            stream.push()
            for _ in range(data.draw(takes)):
                stream.take()
    stream.drain()
    stream.check_all()


@pytest.mark.parametrize("declared", EXAMPLES, ids=lambda declared: repr(declared.policy))
def test_all_lengths_and_every_place_of_the_end(declared: Declared) -> None:
    for length in range(4 * declared.longest + 1):
        ends = range(length + 1) if length <= 2 * declared.longest else (0, length // 2, length - 1, length)
        for end_known_after in ends:
            for taken_before_end in (True, False):
                stream = Stream(declared, length)
                for pushed in range(length + 1):
                    if pushed == end_known_after:
                        stream.finish()
                    if taken_before_end or stream.known:
                        stream.drain()
                    if pushed < length:
                        stream.push()
                        if taken_before_end and pushed + 1 != end_known_after:
                            stream.drain()
                stream.drain()
                stream.check_all()


@pytest.mark.parametrize("declared", EXAMPLES, ids=lambda declared: repr(declared.policy))
def test_end_known_only_after_all_was_taken(declared: Declared) -> None:
    for length in range(4 * declared.longest + 1):
        stream = Stream(declared, length)
        for _ in range(length):
            stream.push()
            stream.drain()
        stream.finish()
        stream.drain()
        stream.check_all()


@given(POLICIES, st.integers(0, 60))
def test_the_number_of_chunks_never_falls_and_never_exceeds_that_of_items(declared: Declared, num_items: int) -> None:
    before, now = (num_chunks(declared.policy, num_items, done) for done in (False, True))
    assert before <= now <= max(1, num_items)
    assert before <= num_chunks(declared.policy, num_items + 1, False)
    assert now <= num_chunks(declared.policy, num_items + 1, True)


@given(POLICIES, st.integers(0, 12))
def test_windows_follow_one_another(declared: Declared, index: int) -> None:
    window = declared.policy.window(index)
    new_start = declared.new_start(index)
    assert window == ChunkWindow(
        declared.start(index), new_start, new_start + declared.num_new(index), declared.stop(index)
    )


TAILS: list[tuple[ChunkPolicy, int, list[tuple[int, int, int]]]] = [
    (Sliding(28, 7), 28, [(0, 27, 28)]),
    (Sliding(28, 7), 40, [(0, 27, 28), (7, 34, 7), (14, 39, 5)]),
    (LeftContext(25, 25), 60, [(0, 24, 25), (0, 49, 25), (25, 59, 10)]),
    (LeftContext(25, 25), 25, [(0, 24, 25)]),
    (LeftContext(5, 10), 12, [(0, 4, 5), (0, 9, 5), (0, 11, 2)]),
    (Fixed(4), 8, [(0, 3, 4), (4, 7, 4)]),
    (Fixed(4), 3, [(0, 2, 3)]),
    (Field(2, 3, (1, 4)), 7, [(0, 3, 1), (0, 6, 4), (3, 6, 2)]),
]


@pytest.mark.parametrize(("policy", "length", "expected"), TAILS)
def test_tails_written_out(policy: ChunkPolicy, length: int, expected: list[tuple[int, int, int]]) -> None:
    """(first item, last item, number of new ones) of each chunk, the end being known with the last item."""
    buffer, chunks = StreamBuffer(policy), []
    for item in range(length):
        buffer.push(item)
        if item == length - 1:
            buffer.finish()
        while (chunk := buffer.take()) is not None:
            chunks.append(chunk)
    assert [(chunk.items[0], chunk.items[-1], chunk.num_new) for chunk in chunks] == expected


@given(FEW, FEW, st.lists(SOME, min_size=1, max_size=3).map(tuple), st.lists(st.integers(-9, 9), max_size=40))
def test_receptive_field_gives_what_the_whole_sequence_gives(
    left: int, right: int, strides: tuple[int, ...], items: list[int]
) -> None:
    """A filter that sees `left` items back and `right` ahead, and knows where the stream begins and ends."""

    def filtered(sequence: tuple[int, ...], at: int) -> tuple[int, ...]:
        return sequence[max(0, at - left) : at + right + 1]

    buffer, streamed = StreamBuffer(Field(left, right, strides)), []
    for index, item in enumerate(items):
        buffer.push(item)
        if index == len(items) - 1:
            buffer.finish()
        while (chunk := buffer.take()) is not None:
            streamed += [filtered(chunk.items, chunk.num_context + k) for k in range(chunk.num_new)]
    assert streamed == [filtered(tuple(items), at) for at in range(len(items))]


def test_items_are_let_go_of_and_never_compared() -> None:
    class Opaque:
        __eq__ = None  # type: ignore[assignment]
        __hash__ = None  # type: ignore[assignment]

    buffer = StreamBuffer(LeftContext(2, 1))
    for _ in range(1000):
        buffer.push(Opaque())
        buffer.take()
        assert buffer.num_held <= 2
    buffer.finish()
    assert buffer.take() is not None
    assert buffer.num_held == 0


def test_nothing_comes_after_the_end() -> None:
    buffer = StreamBuffer(Fixed(2))
    buffer.finish(1)
    assert buffer.take() is None
    buffer.push("only")
    with pytest.raises(AssertionError, match="after the end"):
        buffer.push("more")
    with pytest.raises(AssertionError, match="ends once"):
        buffer.finish()
    chunk = buffer.take()
    assert chunk == StreamChunk(("only",), 0, 0, 1, 0, True)
    assert buffer.take() is None
    assert buffer.num_held == 0
