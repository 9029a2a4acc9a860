"""The integer arrays by which paged attention kernels find the pages of a ragged batch. Pure functions, numpy only.

The layout is the usual compressed one: sequence i has the queries qo_indptr[i] : qo_indptr[i + 1] and the pages
kv_indices[kv_indptr[i] : kv_indptr[i + 1]], all of them full but the last, which holds kv_last_page_len[i] tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass(frozen=True, slots=True)
class PagedIndex:
    """All int32: qo_indptr and kv_indptr [B + 1], kv_indices [total pages], kv_last_page_len [B]."""

    qo_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    kv_last_page_len: np.ndarray


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """Where each new token of a batch goes, int32 [N] each: which sequence, and which position in it."""

    batch_indices: np.ndarray
    positions: np.ndarray


def indptr(counts: Sequence[int]) -> np.ndarray:
    """int32 [B + 1]: 0 and the running sums."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def paged_index(
    page_lists: Sequence[Sequence[int]], lengths: Sequence[int], num_new: Sequence[int], page_size: int
) -> PagedIndex:
    """Index of a batch whose sequence i has num_new[i] queries and sees the first lengths[i] positions of its pages.

    Pages beyond those positions are left out. A sequence that sees nothing has no pages and, by convention, a last page
    length of page_size, so that (pages - 1) * page_size + last page length is its length too.
    """
    num_pages = [-(-length // page_size) for length in lengths]
    visible = (pages[:count] for pages, count in zip(page_lists, num_pages, strict=True))
    return PagedIndex(
        qo_indptr=indptr(num_new),
        kv_indptr=indptr(num_pages),
        kv_indices=np.fromiter(chain.from_iterable(visible), np.int32, sum(num_pages)),
        kv_last_page_len=((np.asarray(lengths, np.int64) - 1) % page_size + 1).astype(np.int32),
    )


def token_index(num_stored: Sequence[int], num_new: Sequence[int]) -> TokenIndex:
    """Index of the new tokens of a batch, token-major: those of sequence i stand at num_stored[i] and following."""
    batch_indices = np.repeat(np.arange(len(num_new)), num_new)
    within = np.arange(len(batch_indices)) - indptr(num_new)[batch_indices]
    positions = np.asarray(num_stored, np.int64)[batch_indices] + within
    return TokenIndex(batch_indices.astype(np.int32), positions.astype(np.int32))
