"""The arena's bookkeeping: blocks never overlap, nothing is lost, holes merge."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mstar_rt.errors import LargerThanSharedMemory, SharedMemoryExhausted
from mstar_rt.transport.block_allocator import ALIGNMENT, BlockAllocator

START, END = 64, 64 + 40 * ALIGNMENT


class AllocatorMachine(RuleBasedStateMachine):
    """Against a model: a map from each 64-byte cell to the block that holds it."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(START, END)
        self.cells: dict[int, int] = {}

    @rule(target=blocks, num_bytes=st.integers(1, 12 * ALIGNMENT))
    def allocate(self, num_bytes: int) -> object:
        num_cells = -(-num_bytes // ALIGNMENT)
        try:
            offset = self.allocator.allocate(num_bytes)
        except SharedMemoryExhausted:
            assert self.largest_hole() < num_cells
            return multiple()
        assert offset % ALIGNMENT == 0
        assert START <= offset <= END - num_cells * ALIGNMENT
        cells = range(offset // ALIGNMENT, offset // ALIGNMENT + num_cells)
        assert not any(cell in self.cells for cell in cells), "blocks overlap"
        self.cells.update(dict.fromkeys(cells, offset))
        return offset

    @rule(offset=consumes(blocks))
    def release(self, offset: int) -> None:
        self.allocator.release(offset)
        self.cells = {cell: holder for cell, holder in self.cells.items() if holder != offset}

    @invariant()
    def conserves(self) -> None:
        assert self.allocator.num_held_bytes == len(self.cells) * ALIGNMENT
        assert self.allocator.num_free_bytes + self.allocator.num_held_bytes == END - START
        assert self.allocator.num_held == len(set(self.cells.values()))

    @invariant()
    def idle_arena_is_one_hole(self) -> None:
        if not self.cells:
            self.allocator.release(self.allocator.allocate(END - START))

    def largest_hole(self) -> int:
        longest = run = 0
        for cell in range(START // ALIGNMENT, END // ALIGNMENT):
            run = 0 if cell in self.cells else run + 1
            longest = max(longest, run)
        return longest


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase


def test_what_the_empty_arena_has_no_room_for_is_told_apart() -> None:
    allocator = BlockAllocator(START, END)
    whole = END - START
    with pytest.raises(LargerThanSharedMemory, match=f"no room for {whole + 1} bytes .* which has {whole} in all"):
        allocator.allocate(whole + 1)
    allocator.release(allocator.allocate(whole))
    assert allocator.num_held == 0


def test_exhaustion_names_the_numbers_and_changes_nothing() -> None:
    allocator = BlockAllocator(START, END)
    allocator.allocate(30 * ALIGNMENT - 1)
    with pytest.raises(
        SharedMemoryExhausted, match=r"no room for 641 bytes.* 1920 of 2560 bytes are held in 1 block"
    ) as e:
        allocator.allocate(641)
    assert "largest free stretch is 640 bytes" in str(e.value)
    assert e.value.retryable
    assert allocator.num_free_bytes == 640
    allocator.allocate(640)


def test_lowest_address_is_reused_first() -> None:
    allocator = BlockAllocator(START, END)
    first = allocator.allocate(100)
    allocator.allocate(100)
    allocator.release(first)
    assert allocator.allocate(128) == first
