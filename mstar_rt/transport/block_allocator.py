"""Which bytes of an arena are free: pure bookkeeping, no memory."""

from __future__ import annotations

from bisect import bisect_left

from mstar_rt.errors import LargerThanSharedMemory, SharedMemoryExhausted

ALIGNMENT = 64
"""Bytes: a cache line, and what vectorised code on any CPU asks for."""


class BlockAllocator:
    """Hands out aligned blocks of [start, end), lowest address first.

    Lowest first keeps the touched part of the arena small and its pages warm. Holes are few (the tensors in
    flight), so that a linear search is fast; neighbouring holes are always merged.
    """

    def __init__(self, start: int, end: int) -> None:
        assert 0 <= start < end, (start, end)
        assert start % ALIGNMENT == 0, start
        self._capacity = (end - start) // ALIGNMENT * ALIGNMENT
        self._hole_offsets = [start]
        self._hole_sizes = [self._capacity]
        self._held: dict[int, int] = {}
        self._num_held_bytes = 0

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_held_bytes(self) -> int:
        """Bytes in use, rounded up to the alignment per block."""
        return self._num_held_bytes

    @property
    def num_free_bytes(self) -> int:
        return self._capacity - self._num_held_bytes

    def allocate(self, num_bytes: int) -> int:
        """The offset of a new block.

        Raises:  SharedMemoryExhausted: no hole is large enough; nothing was changed. LargerThanSharedMemory: none will.
        """
        assert num_bytes > 0, num_bytes
        size = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if size > self._capacity:
            raise LargerThanSharedMemory(
                f"no room for {num_bytes} bytes in shared memory, which has {self._capacity} in all"
            )
        for index, hole in enumerate(self._hole_sizes):
            if hole >= size:
                return self._take(index, size)
        raise SharedMemoryExhausted(
            f"no room for {num_bytes} bytes in shared memory: {self._num_held_bytes} of {self._capacity} "
            f"bytes are held in {len(self._held)} blocks, the largest free stretch is "
            f"{max(self._hole_sizes, default=0)} bytes"
        )

    def release(self, offset: int) -> None:
        """Give back the block at `offset`."""
        size = self._held.pop(offset)
        self._num_held_bytes -= size
        index = bisect_left(self._hole_offsets, offset)
        if index < len(self._hole_offsets) and offset + size == self._hole_offsets[index]:
            size += self._hole_sizes[index]
            del self._hole_offsets[index], self._hole_sizes[index]
        before = index - 1
        if before >= 0 and self._hole_offsets[before] + self._hole_sizes[before] == offset:
            self._hole_sizes[before] += size
        else:
            self._hole_offsets.insert(index, offset)
            self._hole_sizes.insert(index, size)

    def _take(self, index: int, size: int) -> int:
        offset = self._hole_offsets[index]
        if self._hole_sizes[index] == size:
            del self._hole_offsets[index], self._hole_sizes[index]
        else:
            self._hole_offsets[index] += size
            self._hole_sizes[index] -= size
        self._held[offset] = size
        self._num_held_bytes += size
        return offset
