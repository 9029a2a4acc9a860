"""The pages of equally long sequences as one batch: reached in place where they lie evenly, else copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch

RUN_COST_BYTES = 160_000
"""One more attention call costs about as much as gathering this many bytes of keys and values (20 us at 8 GB/s)."""

COPY_BYTES = 4_000_000
"""Keys and values are gathered in parts of about this size, which stay in the cache until they are used."""


class StoredTokens(Protocol):
    """The tokens of sequences in each layer of a pool, the newest of which are yet to be written."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the new tokens [num_sequences, num_new, heads, head_dim] at the end of the sequences."""
        ...

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all tokens, [num_sequences, length, heads, head_dim] each."""
        ...


@dataclass(frozen=True, slots=True)
class EvenPages:
    """Sequences in consecutive pages each, at equal distances: one strided view of the pool, nothing is copied."""

    first_page: int
    stride_pages: int
    num_sequences: int
    length: int

    def open(self, kv: torch.Tensor, num_new: int) -> EvenTokens:
        """kv [num_layers, 2, num_pages, page_size, heads, head_dim], contiguous."""
        _, half_stride, page_stride, token_stride, head_stride, _ = kv.stride()
        stored = kv.as_strided(
            (2 * kv.shape[0], self.num_sequences, self.length, *kv.shape[4:]),
            (half_stride, self.stride_pages * page_stride, token_stride, head_stride, 1),
            kv.storage_offset() + self.first_page * page_stride,
        )
        return EvenTokens(stored.unbind(), stored[:, :, self.length - num_new :].unbind())


class EvenTokens(NamedTuple):
    """Views of each layer's keys, then its values: those of all layers are made by three operations, those of one alone
    would take four."""

    stored: Sequence[torch.Tensor]
    new: Sequence[torch.Tensor]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self.new[2 * layer].copy_(k)
        self.new[2 * layer + 1].copy_(v)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.stored[2 * layer], self.stored[2 * layer + 1]


@dataclass(frozen=True, slots=True)
class ScatteredPages:
    """Sequences whose pages lie anywhere: read by copying whole pages."""

    num_sequences: int
    length: int
    page_ids: torch.Tensor
    """int64 [num_sequences * pages per sequence]."""
    new_page_ids: torch.Tensor | None
    """int64, where the new tokens fill whole pages: those pages."""
    new_slots: torch.Tensor | None
    """int64 [num_sequences * num_new], else: page * page_size + offset of each new token."""

    def open(self, kv: torch.Tensor, num_new: int) -> ScatteredTokens:
        """kv [num_layers, 2, num_pages, page_size, heads, head_dim], contiguous."""
        return ScatteredTokens(self, kv.flatten(0, 1).unbind())


class ScatteredTokens(NamedTuple):
    """Each layer's pages of keys, then of values, [num_pages, page_size, heads, head_dim]."""

    layout: ScatteredPages
    pages: Sequence[torch.Tensor]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._write(self.pages[2 * layer], k)
        self._write(self.pages[2 * layer + 1], v)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies."""
        return self._read(self.pages[2 * layer]), self._read(self.pages[2 * layer + 1])

    def _write(self, pages: torch.Tensor, new: torch.Tensor) -> None:
        layout = self.layout
        if layout.new_page_ids is not None:
            pages.index_copy_(0, layout.new_page_ids, new.reshape(-1, *pages.shape[1:]))
        elif layout.new_slots is not None:
            pages.view(-1, *pages.shape[2:]).index_copy_(0, layout.new_slots, new.flatten(0, 1))

    def _read(self, pages: torch.Tensor) -> torch.Tensor:
        copied = pages.index_select(0, self.layout.page_ids)
        return copied.view(self.layout.num_sequences, -1, *pages.shape[2:])[:, : self.layout.length]


PageLayout = EvenPages | ScatteredPages


def lay_out(
    page_lists: Sequence[Sequence[int]],
    page_size: int,
    length: int,
    num_new: int,
    token_bytes: int,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[range, PageLayout]]:
    """Cut a batch of sequences of `length` tokens, the last `num_new` of them not yet stored, into evenly lying runs.

    Args:   page_lists: pages of each sequence, all equally many. num_new is 0 if nothing will be written.
            token_bytes: size of one token's keys and values in one layer.
    Yields: (which sequences, how to reach their pages); copied parts if the even runs are short.
    """
    num_pages = len(page_lists[0])
    if all(_is_consecutive(pages) for pages in page_lists):
        starts = [pages[0] for pages in page_lists]
        runs = _even_runs(starts)
        if len(runs) == 1 or len(runs) * RUN_COST_BYTES <= len(page_lists) * num_pages * page_size * token_bytes:
            for run in runs:
                stride = starts[run[1]] - starts[run[0]] if len(run) > 1 else 0
                yield run, EvenPages(starts[run[0]], stride, len(run), length)
            return
    most = max(1, COPY_BYTES // (num_pages * page_size * token_bytes))
    matrix = np.fromiter(chain.from_iterable(page_lists), np.int64, len(page_lists) * num_pages).reshape(-1, num_pages)
    for begin in range(0, len(matrix), most):
        part = matrix[begin : begin + most]
        yield range(begin, begin + len(part)), _scattered(part, page_size, length, num_new, device)


def _is_consecutive(pages: Sequence[int]) -> bool:
    return pages == list(range(pages[0], pages[0] + len(pages)))


def _even_runs(starts: Sequence[int]) -> list[range]:
    """Maximal stretches in which the starts differ by one non-negative number."""
    runs: list[range] = []
    begin = 0
    while begin < len(starts):
        end = begin + 1
        if end < len(starts) and starts[end] >= starts[begin]:
            stride = starts[end] - starts[begin]
            while end < len(starts) and starts[end] - starts[end - 1] == stride:
                end += 1
        runs.append(range(begin, end))
        begin = end
    return runs


def _scattered(
    pages: np.ndarray, page_size: int, length: int, num_new: int, device: torch.device | str
) -> ScatteredPages:
    def indices(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.flatten()).to(device)

    start = length - num_new
    new_page_ids = new_slots = None
    if num_new and start % page_size == 0 and num_new % page_size == 0:
        new_page_ids = indices(pages[:, start // page_size :])
    elif num_new:
        position = np.arange(start, length)
        new_slots = indices(pages[:, position // page_size] * page_size + position % page_size)
    return ScatteredPages(len(pages), length, indices(pages), new_page_ids, new_slots)
