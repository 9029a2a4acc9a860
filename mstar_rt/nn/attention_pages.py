"""The pages of equally long sequences as one batch: reached in place where they lie evenly, else copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

RUN_COST_BYTES = 160_000
"""One more attention call costs about as much as gathering this many bytes of keys and values (20 us at 8 GB/s)."""

COPY_BYTES = 4_000_000
"""Keys and values are gathered in parts of about this size, which stay in the cache until they are used."""


@dataclass(frozen=True, slots=True)
class EvenPages:
    """Sequences in consecutive pages each, at equal distances: one strided view of the pool, nothing is copied."""

    first_page: int
    stride_pages: int
    num_sequences: int
    length: int

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """pages [num_pages, page_size, heads, head_dim] -> [num_sequences, length, heads, head_dim], a view."""
        page_stride, token_stride, head_stride, _ = pages.stride()
        return pages.as_strided(
            (self.num_sequences, self.length, *pages.shape[2:]),
            (self.stride_pages * page_stride, token_stride, head_stride, 1),
            pages.storage_offset() + self.first_page * page_stride,
        )

    def write(self, pages: torch.Tensor, new: torch.Tensor) -> None:
        """Store `new` [num_sequences, num_new, heads, head_dim] at the end of the sequences."""
        self.write_and_read(pages, new)

    def write_and_read(self, pages: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Both, over one view: a few microseconds that every layer of every step would pay twice."""
        tokens = self.read(pages)
        tokens[:, self.length - new.shape[1] :] = new
        return tokens


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

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """pages [num_pages, page_size, heads, head_dim] -> [num_sequences, length, heads, head_dim], a copy."""
        copied = pages.index_select(0, self.page_ids)
        return copied.view(self.num_sequences, -1, *pages.shape[2:])[:, : self.length]

    def write(self, pages: torch.Tensor, new: torch.Tensor) -> None:
        """Store `new` [num_sequences, num_new, heads, head_dim] at the end of the sequences."""
        if self.new_page_ids is not None:
            pages.index_copy_(0, self.new_page_ids, new.reshape(-1, *pages.shape[1:]))
        elif self.new_slots is not None:
            pages.view(-1, *pages.shape[2:]).index_copy_(0, self.new_slots, new.flatten(0, 1))

    def write_and_read(self, pages: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        self.write(pages, new)
        return self.read(pages)


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
    pages = _matrix(page_lists)
    if (pages[:, 1:] == pages[:, :-1] + 1).all():
        starts = pages[:, 0].tolist()
        runs = _even_runs(starts)
        if len(runs) == 1 or len(runs) * RUN_COST_BYTES <= pages.size * page_size * token_bytes:
            for run in runs:
                stride = starts[run[1]] - starts[run[0]] if len(run) > 1 else 0
                yield run, EvenPages(starts[run[0]], stride, len(run), length)
            return
    most = max(1, COPY_BYTES // (pages.shape[1] * page_size * token_bytes))
    for begin in range(0, len(pages), most):
        part = pages[begin : begin + most]
        yield range(begin, begin + len(part)), _scattered(part, page_size, length, num_new, device)


def _matrix(page_lists: Sequence[Sequence[int]]) -> np.ndarray:
    """int64 [sequences, pages]."""
    num_pages = len(page_lists[0])
    flat = np.fromiter(chain.from_iterable(page_lists), np.int64, len(page_lists) * num_pages)
    return flat.reshape(-1, num_pages)


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
