"""One sequence: which pages hold its token positions."""

from __future__ import annotations

from collections.abc import Callable

from mstar_rt.cache.allocator import PageAllocator
from mstar_rt.cache.marks import PeerMarks
from mstar_rt.errors import InvalidArgument

CopyPage = Callable[[int, int], None]
"""(source, destination): copy what is stored in one page into another, for every layer."""


def copy_nothing(source: int, destination: int) -> None:
    """For tables without storage behind them."""


class PageTable:
    """Token position p of the sequence lies in `pages[p // page_size]` at offset p % page_size.

    Tables may share pages. A page is written only by a table that is its single holder: full pages are never written
    again, and a shared last page that is partly filled is copied by the table that appends to it (copy on write).

    `marks` are there once the sequence has gone to another rank, come from one or been copied for a walk; a fork has
    none, as the peers know nothing of it.
    """

    __slots__ = ("_allocator", "_copy_page", "_max_tokens", "length", "marks", "page_size", "pages", "released")

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        copy_page: CopyPage = copy_nothing,
        max_tokens: int | None = None,
    ) -> None:
        self.page_size = page_size
        self.length = 0
        self.pages: list[int] = []
        self.marks: PeerMarks | None = None
        self.released = False
        self._allocator = allocator
        self._copy_page = copy_page
        self._max_tokens = max_tokens

    @property
    def allocator(self) -> PageAllocator:
        return self._allocator

    def new_pages_for(self, num_tokens: int) -> int:
        """Pages that appending takes from the pool, without the copy of a shared last page."""
        return -(-(self.length + num_tokens) // self.page_size) - len(self.pages)

    def shared_tail(self) -> int | None:
        """The last page if it is partly filled and has other holders, so that appending must copy it."""
        if self.length % self.page_size and self._allocator.ref_count(self.pages[-1]) > 1:
            return self.pages[-1]
        return None

    def check_room(self, num_tokens: int) -> None:
        """Raises: InvalidArgument: the sequence would grow past the longest one that its cache was declared for."""
        assert not self.released, "a released page table is used again"
        if self._max_tokens is not None and self.length + num_tokens > self._max_tokens:
            raise InvalidArgument(
                f"a sequence of {self.length} tokens cannot take {num_tokens} more: "
                f"its cache is declared for at most {self._max_tokens}"
            )

    def check_length(self, length: int) -> None:
        """Raises: InvalidArgument: the sequence cannot be that long."""
        if self._max_tokens is not None and length > self._max_tokens:
            raise InvalidArgument(
                f"a sequence of {length} tokens is too long: its cache is declared for at most {self._max_tokens}"
            )

    def append(self, num_tokens: int) -> None:
        """Reserve the next `num_tokens` positions; what is stored there is undefined until written.

        Raises:  PagesExhausted, InvalidArgument (too long): nothing changed.
        """
        self.check_room(num_tokens)
        if num_tokens == 0:
            return
        tail = self.shared_tail() if self.length % self.page_size else None
        num_pages = self.new_pages_for(num_tokens)
        if tail is None:
            if num_pages:
                self.pages += self._allocator.allocate(num_pages, self.pages[-1] if self.pages else None)
        else:
            before = self.pages[-2] if len(self.pages) > 1 else None
            fresh = self._allocator.allocate(1 + num_pages, before)
            self._copy_page(tail, fresh[0])
            self._allocator.release(tail)
            self.pages[-1:] = fresh
        self.length += num_tokens

    def write_again(self, num_tokens: int) -> None:
        """What is stored at the last `num_tokens` positions changes, in some layers: peers do not have it any more."""
        assert num_tokens <= self.length, f"{num_tokens} of {self.length} tokens are to be written again"
        start = self.length - num_tokens
        assert all(self._allocator.ref_count(page) == 1 for page in self.pages[start // self.page_size :]), (
            "tokens that several sequences share are written again"
        )
        if self.marks is not None:
            self.marks.fall(start)

    def fork(self) -> PageTable:
        """A second sequence with the same tokens. Takes no page: all are shared until one of the two appends."""
        assert not self.released, "a released page table is forked"
        twin = PageTable(self._allocator, self.page_size, self._copy_page, self._max_tokens)
        for page in self.pages:
            self._allocator.share(page)
        twin.pages = list(self.pages)
        twin.length = self.length
        return twin

    def common_tokens(self, other: PageTable) -> int:
        """Leading positions that both tables read from the same pages."""
        num_pages = 0
        for mine, theirs in zip(self.pages, other.pages, strict=False):
            if mine != theirs:
                break
            num_pages += 1
        return min(num_pages * self.page_size, self.length, other.length)

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        assert 0 <= length <= self.length, f"cannot truncate {self.length} tokens to {length}"
        num_kept = -(-length // self.page_size)
        for page in reversed(self.pages[num_kept:]):
            self._allocator.release(page)
        del self.pages[num_kept:]
        self.length = length
        if self.marks is not None:
            self.marks.fall(length)

    def release(self) -> None:
        """Give every page back. Releasing twice is the same as once."""
        self.truncate(0)
        self.released = True
