"""The index arrays say of every token the page and offset that the page tables say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.cache import PageAllocator, PageTable
from mstar_rt.nn.attention_index import indptr, paged_index, token_index

SEQUENCE = st.tuples(st.integers(0, 20), st.integers(1, 9))


@given(page_size=st.integers(1, 6), sequences=st.lists(SEQUENCE, min_size=1, max_size=8))
def test_indices_lead_to_the_pages_of_the_tables(page_size: int, sequences: list[tuple[int, int]]) -> None:
    allocator = PageAllocator(400)
    tables = [PageTable(allocator, page_size) for _ in sequences]
    for table, (stored, _) in zip(tables, sequences, strict=True):
        table.append(stored)
    stored, new = ([sequence[i] for sequence in sequences] for i in (0, 1))
    for table, count in zip(tables, new, strict=True):
        table.append(count)
    pages = [table.pages for table in tables]

    # Seen with the new tokens, as an append sees them, and without, as the history of a transient block.
    for lengths in ([table.length for table in tables], stored):
        index = paged_index(pages, lengths, new, page_size)
        assert {array.dtype for array in (index.qo_indptr, index.kv_indptr, index.kv_indices)} == {np.dtype(np.int32)}
        for i, length in enumerate(lengths):
            own = index.kv_indices[index.kv_indptr[i] : index.kv_indptr[i + 1]].tolist()
            seen = [(own[p // page_size], p % page_size) for p in range(length)]
            assert seen == [(pages[i][p // page_size], p % page_size) for p in range(length)]
            assert (len(own) - 1) * page_size + index.kv_last_page_len[i] == length
            assert 1 <= index.kv_last_page_len[i] <= page_size
            assert index.qo_indptr[i + 1] - index.qo_indptr[i] == new[i]

    tokens = token_index(stored, new)
    expected = [(i, stored[i] + j) for i, count in enumerate(new) for j in range(count)]
    assert list(zip(tokens.batch_indices.tolist(), tokens.positions.tolist(), strict=True)) == expected
    assert tokens.batch_indices.dtype == tokens.positions.dtype == np.int32


def test_a_worked_example() -> None:
    index = paged_index([[7, 3], [5], [1, 2, 9]], [6, 4, 9], [2, 4, 1], page_size=4)
    assert index.qo_indptr.tolist() == [0, 2, 6, 7]
    assert index.kv_indptr.tolist() == [0, 2, 3, 6]
    assert index.kv_indices.tolist() == [7, 3, 5, 1, 2, 9]
    assert index.kv_last_page_len.tolist() == [2, 4, 1]
    assert token_index([4, 0, 8], [2, 4, 1]).positions.tolist() == [4, 5, 0, 1, 2, 3, 8]


def test_an_empty_batch_has_no_tokens() -> None:
    assert indptr([]).tolist() == [0]
    assert token_index([], []).positions.tolist() == []
