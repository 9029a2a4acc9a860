"""Room for the appends of a whole batch: all of them or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mstar_rt.cache.page_table import PageTable
from mstar_rt.errors import PagesExhausted


class Reservation:
    """Appends that were made together and can be taken back together."""

    def __init__(self, tables: Sequence[PageTable], old_lengths: Sequence[int]) -> None:
        self._tables = tables
        self._old_lengths = old_lengths

    def rollback(self) -> None:
        """Truncate each table to its length before; for a step that failed. Doing it twice is the same as once.

        A last page that was copied because it was shared stays copied: it holds the same tokens.
        """
        for table, old_length in zip(self._tables, self._old_lengths, strict=True):
            if table.length > old_length:
                table.truncate(old_length)


def reserve(tables: Sequence[PageTable], counts: Sequence[int]) -> Reservation:
    """Append `counts[i]` positions to `tables[i]`, all of one allocator and no table twice.

    Raises:  PagesExhausted: no table, page or reference count changed.
             InvalidArgument: a sequence would become too long; nothing changed.
    """
    old_lengths = [table.length for table in tables]
    if tables:
        _check_pages(tables, counts)
    for table, count in zip(tables, counts, strict=True):
        table.append(count)
    return Reservation(tables, old_lengths)


def rewrite(tables: Sequence[PageTable], kept: Sequence[int], counts: Sequence[int]) -> None:
    """Truncate `tables[i]` to `kept[i]`, then append `counts[i]` positions; all of one allocator and no table twice.

    Raises:  PagesExhausted, InvalidArgument (too long): nothing changed. Pages that truncating frees count as free.
    """
    if not tables:
        return
    assert len(set(map(id, tables))) == len(tables), "a sequence is rewritten twice at once"
    for table, num_kept, count in zip(tables, kept, counts, strict=True):
        table.check_length(num_kept + count)
    num_needed, num_free = _pages_of_rewrite(tables, kept, counts)
    if num_needed > num_free:
        raise PagesExhausted(
            f"{len(tables)} sequences from another rank need {num_needed} cache pages and {num_free} are free or "
            "become free"
        )
    for table, num_kept in zip(tables, kept, strict=True):
        if num_kept < table.length:
            table.truncate(num_kept)
    for table, count in zip(tables, counts, strict=True):
        table.append(count)


def _pages_of_rewrite(tables: Sequence[PageTable], kept: Sequence[int], counts: Sequence[int]) -> tuple[int, int]:
    """(pages that the appends take, pages that are free once everything is truncated)."""
    allocator = tables[0].allocator
    num_leaving: Counter[int] = Counter()
    for table, num_kept in zip(tables, kept, strict=True):
        num_leaving.update(table.pages[-(-num_kept // table.page_size) :])
    num_freed = sum(allocator.ref_count(page) == count for page, count in num_leaving.items())
    num_needed = 0
    for table, num_kept, count in zip(tables, kept, counts, strict=True):
        num_pages_kept = -(-num_kept // table.page_size)
        num_needed += -(-(num_kept + count) // table.page_size) - num_pages_kept
        if num_kept % table.page_size == 0 or count == 0:
            continue
        tail = table.pages[num_pages_kept - 1]
        if allocator.ref_count(tail) - num_leaving[tail] > 1:
            num_leaving[tail] += 1
            num_needed += 1
    return num_needed, allocator.num_free + num_freed


def _check_pages(tables: Sequence[PageTable], counts: Sequence[int]) -> None:
    assert len(set(map(id, tables))) == len(tables), "a sequence is appended to twice in one batch"
    allocator = tables[0].allocator
    num_needed = 0
    num_leaving: Counter[int] = Counter()
    for table, count in zip(tables, counts, strict=True):
        table.check_room(count)
        num_needed += table.new_pages_for(count)
        if table.length % table.page_size == 0 or count == 0:
            continue
        # Of several holders that append in this batch the last one finds itself alone and does not copy.
        tail = table.pages[-1]
        if allocator.ref_count(tail) - num_leaving[tail] > 1:
            num_leaving[tail] += 1
            num_needed += 1
    if num_needed > allocator.num_free:
        raise PagesExhausted(
            f"a batch of {len(tables)} sequences needs {num_needed} cache pages and {allocator.num_free} of "
            f"{allocator.num_pages} are free"
        )
