"""Who still reads which block of an arena: pure bookkeeping."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from mstar_rt.transport.block_allocator import BlockAllocator


class BlockHolds:
    """Blocks with the set of consumers that hold each; a block is freed when its last holder lets go.

    Block ids start at a random number: a late release that was meant for a dead predecessor under the same
    address then cannot name a block of ours.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self._offsets: dict[int, int] = {}
        self._holders: dict[int, set[str]] = {}
        self._next_id = int.from_bytes(secrets.token_bytes(7), "little")
        self.num_unknown_releases = 0

    def hold(self, num_bytes: int, holders: Sequence[str]) -> tuple[int, int]:
        """A new block: its id and offset. Raises SharedMemoryExhausted and then has changed nothing."""
        assert holders, "a block without a consumer would never be freed"
        offset = self._allocator.allocate(num_bytes)
        block_id, self._next_id = self._next_id, self._next_id + 1
        self._offsets[block_id] = offset
        self._holders[block_id] = set(holders)
        return block_id, offset

    def let_go(self, holder: str, block_ids: Iterable[int]) -> None:
        """`holder` no longer reads these. Blocks that it does not hold are counted, not an error: its hold
        may have been dropped by `forget` while its release was under way.
        """
        for block_id in block_ids:
            holders = self._holders.get(block_id, ())
            if holder in holders:
                self._drop(block_id, holder)
            else:
                self.num_unknown_releases += 1

    def forget(self, holder: str) -> None:
        """Drop every hold of a dead consumer."""
        for block_id in [block_id for block_id, holders in self._holders.items() if holder in holders]:
            self._drop(block_id, holder)

    def holders(self, block_id: int) -> frozenset[str]:
        return frozenset(self._holders.get(block_id, ()))

    def _drop(self, block_id: int, holder: str) -> None:
        holders = self._holders[block_id]
        holders.remove(holder)
        if not holders:
            del self._holders[block_id]
            self._allocator.release(self._offsets.pop(block_id))
