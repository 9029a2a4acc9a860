"""Any history of appends, forks, truncations and releases keeps contents, reference counts and page totals right."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from mstar_rt.cache import PageAllocator, PageTable, reserve
from mstar_rt.errors import InvalidArgument, PagesExhausted

MAX_TOKENS = 25


class PageTableMachine(RuleBasedStateMachine):
    """Tables over a small pool whose pages hold integers; `contents` says what each sequence must read back."""

    tables = Bundle("tables")

    @initialize(
        target=tables, num_pages=st.integers(1, 14), page_size=st.integers(1, 5), extent_pages=st.integers(1, 6)
    )
    def set_up(self, num_pages: int, page_size: int, extent_pages: int) -> object:
        self.allocator = PageAllocator(num_pages, extent_pages)
        self.page_size = page_size
        self.storage = [[-1] * page_size for _ in range(num_pages)]
        self.live: list[PageTable] = []
        self.contents: dict[int, list[int]] = {}
        self.next_token = 0
        return multiple(self.create(), self.create(), self.create())

    def copy_page(self, source: int, destination: int) -> None:
        assert self.allocator.ref_count(destination) == 1
        self.storage[destination] = list(self.storage[source])

    def adopt(self, table: PageTable, contents: list[int]) -> PageTable:
        self.live.append(table)
        self.contents[id(table)] = contents
        return table

    def snapshot(self) -> object:
        counts = [self.allocator.ref_count(page) for page in range(self.allocator.num_pages)]
        lists = [(table.length, list(table.pages)) for table in self.live]
        return counts, lists, [list(page) for page in self.storage], self.allocator.num_free

    def write_new_tokens(self, table: PageTable) -> None:
        contents = self.contents[id(table)]
        for position in range(len(contents), table.length):
            page = table.pages[position // self.page_size]
            assert self.allocator.ref_count(page) == 1, "a page with two holders would be written"
            self.storage[page][position % self.page_size] = self.next_token
            contents.append(self.next_token)
            self.next_token += 1

    @rule(target=tables)
    def create(self) -> PageTable:
        return self.adopt(PageTable(self.allocator, self.page_size, self.copy_page, MAX_TOKENS), [])

    @rule(table=tables, num_tokens=st.integers(0, 9))
    def append(self, table: PageTable, num_tokens: int) -> None:
        before = self.snapshot()
        try:
            table.append(num_tokens)
        except (PagesExhausted, InvalidArgument):
            assert self.snapshot() == before
        else:
            self.write_new_tokens(table)

    @rule(target=tables, table=tables)
    def fork(self, table: PageTable) -> PageTable:
        return self.adopt(table.fork(), list(self.contents[id(table)]))

    @rule(table=tables, share=st.floats(0, 1))
    def truncate(self, table: PageTable, share: float) -> None:
        length = int(share * table.length)
        table.truncate(length)
        del self.contents[id(table)][length:]

    @rule(table=consumes(tables))
    def release(self, table: PageTable) -> None:
        table.release()
        table.release()
        assert (table.length, table.pages) == (0, [])
        self.live = [other for other in self.live if other is not table]
        del self.contents[id(table)]

    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6), order=st.randoms(use_true_random=False))
    def append_to_many(self, counts: list[int], order: object) -> None:
        chosen = order.sample(self.live, min(len(counts), len(self.live)))  # type: ignore[attr-defined]
        before = self.snapshot()
        try:
            reserve(chosen, counts[: len(chosen)])
        except PagesExhausted:
            assert self.snapshot() == before
            assert self.pages_a_batch_takes(chosen, counts) > self.allocator.num_free
        except InvalidArgument:
            assert self.snapshot() == before
        else:
            for table in chosen:
                self.write_new_tokens(table)

    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6), order=st.randoms(use_true_random=False))
    def append_to_many_and_fail(self, counts: list[int], order: object) -> None:
        chosen = order.sample(self.live, min(len(counts), len(self.live)))  # type: ignore[attr-defined]
        try:
            reservation = reserve(chosen, counts[: len(chosen)])
        except (PagesExhausted, InvalidArgument):
            return
        reservation.rollback()
        reservation.rollback()
        for table in chosen:
            assert table.length == len(self.contents[id(table)])

    def pages_a_batch_takes(self, tables: list[PageTable], counts: list[int]) -> int:
        """By trying it on a copy that has pages enough."""
        spare = 1000
        roomy = PageAllocator(self.allocator.num_pages + spare)
        assert sorted(roomy.allocate(self.allocator.num_pages + spare))[0] == 0
        for page in range(roomy.num_pages):
            if page >= self.allocator.num_pages or self.allocator.ref_count(page) == 0:
                roomy.release(page)
            else:
                for _ in range(self.allocator.ref_count(page) - 1):
                    roomy.share(page)
        free_before = roomy.num_free
        for table, count in zip(tables, counts, strict=False):
            twin = PageTable(roomy, self.page_size)
            twin.pages, twin.length = list(table.pages), table.length
            twin.append(count)
        return free_before - roomy.num_free

    @invariant()
    def pages_add_up(self) -> None:
        holders = Counter(page for table in self.live for page in table.pages)
        for page in range(self.allocator.num_pages):
            assert self.allocator.ref_count(page) == holders[page]
        assert self.allocator.num_held == len(holders)
        assert self.allocator.num_free + self.allocator.num_held == self.allocator.num_pages

    @invariant()
    def contents_read_back(self) -> None:
        for table in self.live:
            assert len(table.pages) == -(-table.length // self.page_size)
            stored = [token for page in table.pages for token in self.storage[page]]
            assert stored[: table.length] == self.contents[id(table)]

    def teardown(self) -> None:
        for table in getattr(self, "live", []):
            table.release()
        if hasattr(self, "allocator"):
            assert self.allocator.num_held == 0


PageTableMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPageTables = PageTableMachine.TestCase


def test_fork_takes_no_page_and_the_first_to_append_copies_the_partial_one() -> None:
    copies: list[tuple[int, int]] = []
    allocator = PageAllocator(8)
    table = PageTable(allocator, 4, lambda source, destination: copies.append((source, destination)))
    table.append(6)
    full, partial = table.pages
    twin = table.fork()
    assert allocator.num_held == 2
    twin.append(1)
    assert copies == [(partial, twin.pages[1])]
    assert twin.pages[0] == full
    table.append(1)
    assert len(copies) == 1, "the last holder of a page writes it in place"
    assert table.pages == [full, partial]


def test_a_full_page_stays_shared_when_both_append() -> None:
    copies: list[tuple[int, int]] = []
    table = PageTable(PageAllocator(8), 4, lambda source, destination: copies.append((source, destination)))
    table.append(4)
    twin = table.fork()
    table.append(4)
    twin.append(4)
    assert not copies
    assert table.pages[0] == twin.pages[0]
    assert table.pages[1] != twin.pages[1]


def test_a_sequence_over_its_declared_length_is_refused() -> None:
    table = PageTable(PageAllocator(8), 4, max_tokens=10)
    table.append(8)
    with pytest.raises(InvalidArgument, match=r"a sequence of 8 tokens cannot take 3 more.* at most 10"):
        table.append(3)
    assert (table.length, len(table.pages)) == (8, 2)


@pytest.mark.parametrize(("num_forks", "num_copies"), [(1, 1), (2, 2)])
def test_the_last_of_the_holders_in_a_batch_needs_no_copy(num_forks: int, num_copies: int) -> None:
    allocator = PageAllocator(1 + num_copies)
    table = PageTable(allocator, 4)
    table.append(2)
    holders = [table, *(table.fork() for _ in range(num_forks))]
    reserve(holders, [1] * len(holders))
    assert allocator.num_free == 0
    assert len({holder.pages[0] for holder in holders}) == len(holders)


def test_copies_of_shared_pages_count_before_anything_is_taken() -> None:
    allocator = PageAllocator(3)
    table = PageTable(allocator, 4)
    table.append(2)
    holders = [table, *(table.fork() for _ in range(3))]
    with pytest.raises(PagesExhausted, match="a batch of 4 sequences needs 3 cache pages and 2 of 3 are free"):
        reserve(holders, [1] * 4)
    assert [holder.length for holder in holders] == [2] * 4
    assert (allocator.num_held, allocator.ref_count(table.pages[0])) == (1, 4)
    # One that appends nothing keeps sharing: two copies are enough, the third holder is not the last.
    with pytest.raises(PagesExhausted, match="needs 3"):
        reserve(holders, [1, 1, 1, 0])
    reserve(holders, [1, 1, 0, 0])
    assert allocator.num_free == 0


def test_one_sequence_too_long_refuses_the_whole_batch() -> None:
    allocator = PageAllocator(8)
    tables = [PageTable(allocator, 4, max_tokens=10) for _ in range(2)]
    tables[1].append(8)
    with pytest.raises(InvalidArgument, match="cannot take 3 more"):
        reserve(tables, [3, 3])
    assert [table.length for table in tables] == [0, 8]
    assert allocator.num_held == 2


def test_a_table_is_not_appended_to_twice_in_one_batch() -> None:
    table = PageTable(PageAllocator(8), 4)
    with pytest.raises(AssertionError, match="twice in one batch"):
        reserve([table, table], [1, 1])
