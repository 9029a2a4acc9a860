"""Which pages of a pool are free, and how many holders each held page has. No tensors here."""

from __future__ import annotations

import heapq

from mstar_rt.errors import PagesExhausted


class PageAllocator:
    """Reference-counted pages 0 .. num_pages - 1.

    Every page is either free (no holder) or held: num_free + num_held == num_pages always.

    Placement is part of the job, because attention reads the pages of a batch as one strided view, without copying,
    when each sequence lies in consecutive pages and the sequences lie at equal distances. So the pool is cut into
    extents of `extent_pages`; a new sequence starts at the lowest empty extent and grows from each page into the next.
    When that fails any free page is as good as another.
    """

    def __init__(self, num_pages: int, extent_pages: int = 1) -> None:
        assert min(num_pages, extent_pages) > 0, (num_pages, extent_pages)
        self.num_pages = num_pages
        self.extent_pages = extent_pages
        self._holders = [0] * num_pages
        # A dict is an ordered set: constant-time removal of a chosen page and of the most recently freed one.
        self._free: dict[int, None] = dict.fromkeys(reversed(range(num_pages)))
        num_extents = num_pages // extent_pages  # a shorter extent at the end is only ever filled page by page
        self._held_in_extent = [0] * (num_extents + 1)
        self._empty_extents = list(range(num_extents))  # a heap; entries may be stale, see _start_of_empty_extent
        self._in_heap = bytearray(b"\x01" * num_extents + b"\x00")

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_pages - len(self._free)

    def ref_count(self, page: int) -> int:
        """Number of holders; 0 for a free page."""
        return self._holders[page]

    def allocate(self, num_pages: int, after: int | None = None) -> list[int]:
        """Hold `num_pages` more pages, once each, placed behind the page `after` where that can be.

        Raises: PagesExhausted: fewer are free; none were taken.
        """
        if num_pages > len(self._free):
            raise PagesExhausted(
                f"{num_pages} cache pages were asked for and {len(self._free)} of {self.num_pages} are free"
            )
        return [after := self._take_one(after) for _ in range(num_pages)]

    def share(self, page: int) -> None:
        """One more holder of a held page."""
        assert self._holders[page] > 0, f"page {page} is free and cannot be shared"
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the page is free when it was the last."""
        holders = self._holders[page]
        assert holders > 0, f"page {page} is released more often than it was held"
        self._holders[page] = holders - 1
        if holders == 1:
            self._give_back(page)

    def _take_one(self, after: int | None) -> int:
        if after is not None and (after + 1) in self._free:
            page = after + 1
        else:
            page = self._start_of_empty_extent()
        del self._free[page]
        self._holders[page] = 1
        self._held_in_extent[page // self.extent_pages] += 1
        return page

    def _start_of_empty_extent(self) -> int:
        """First page of the lowest empty extent, or the free page that was released last."""
        while self._empty_extents:
            extent = heapq.heappop(self._empty_extents)
            self._in_heap[extent] = 0
            # An extent whose pages were taken by growth from its neighbour is still in the heap.
            if self._held_in_extent[extent] == 0:
                return extent * self.extent_pages
        return next(reversed(self._free))

    def _give_back(self, page: int) -> None:
        self._free[page] = None
        extent = page // self.extent_pages
        self._held_in_extent[extent] -= 1
        is_whole = extent < len(self._held_in_extent) - 1
        if is_whole and self._held_in_extent[extent] == 0 and not self._in_heap[extent]:
            heapq.heappush(self._empty_extents, extent)
            self._in_heap[extent] = 1
