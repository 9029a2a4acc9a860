"""The tensors behind the pages of one cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from mstar_rt.cache.allocator import PageAllocator
from mstar_rt.cache.page_table import PageTable

MAX_EXTENTS = 128
"""Batches of up to about this many sequences should find an empty extent each."""

COMPARED_BYTES = 1_000_000
"""Stored tokens are compared in parts of about this size, so that what is left over after a difference is not read."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class CacheShape(Protocol):
    """What a pool has to know; a model declares it as `KVSpec`."""

    @property
    def num_layers(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def max_sequence_tokens(self) -> int: ...


class KVPool:
    """Keys and values of every layer, in pages, and the allocator of those pages.

    `kv` is [num_layers, 2 (key, value), num_pages, page_size, num_kv_heads, head_dim], so that a page is one run of
    memory per layer, and consecutive pages are one longer run. On a CPU the memory is only committed page by page as it
    is first written.
    """

    def __init__(
        self,
        spec: CacheShape,
        num_pages: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        extent_pages: int | None = None,
    ) -> None:
        self.spec = spec
        self.page_size = spec.page_size
        self.max_pages_per_sequence = -(-spec.max_sequence_tokens // spec.page_size)
        if extent_pages is None:
            extent_pages = min(self.max_pages_per_sequence, max(1, num_pages // MAX_EXTENTS))
        self.allocator = PageAllocator(num_pages, extent_pages)
        shape = (spec.num_layers, 2, num_pages, spec.page_size, spec.num_kv_heads, spec.head_dim)
        self.kv = torch.zeros(shape, device=device, dtype=dtype)
        self._keys = [layer[0] for layer in self.kv]
        self._values = [layer[1] for layer in self.kv]

    @property
    def num_pages(self) -> int:
        return self.allocator.num_pages

    @property
    def device(self) -> torch.device:
        return self.kv.device

    @property
    def dtype(self) -> torch.dtype:
        return self.kv.dtype

    @property
    def num_bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()

    @property
    def token_bytes(self) -> int:
        """Size of the keys and values of one token in one layer."""
        return 2 * self.spec.num_kv_heads * self.spec.head_dim * self.kv.element_size()

    def keys(self, layer: int) -> torch.Tensor:
        """[num_pages, page_size, num_kv_heads, head_dim], a view."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """[num_pages, page_size, num_kv_heads, head_dim], a view."""
        return self._values[layer]

    def new_table(self) -> PageTable:
        """An empty sequence in this pool."""
        return PageTable(self.allocator, self.page_size, self.copy_page, self.spec.max_sequence_tokens)

    def copy_page(self, source: int, destination: int) -> None:
        """Copy keys and values of every layer from one page to another."""
        self.kv[:, :, destination].copy_(self.kv[:, :, source])

    def read_tokens(self, table: PageTable, start: int, stop: int) -> torch.Tensor:
        """Positions `start` to `stop` of a sequence, as the contiguous CPU tensor [num_layers, 2, stop - start,
        num_kv_heads, head_dim]."""
        shape = (*self.kv.shape[:2], stop - start, *self.kv.shape[4:])
        tokens = torch.empty(shape, dtype=self.dtype, device=self.device)
        for begin, run in self._runs(table, start, stop):
            tokens[:, :, begin : begin + run.shape[2]].copy_(run)
        return tokens.cpu()

    def write_tokens(self, table: PageTable, start: int, tokens: torch.Tensor) -> None:
        """Store what read_tokens gives at the positions from `start` on, which the table has and shares with nobody."""
        tokens = tokens.to(self.device)
        for begin, run in self._runs(table, start, start + tokens.shape[2]):
            run.copy_(tokens[:, :, begin : begin + run.shape[2]])

    def num_equal_tokens(self, table: PageTable, start: int, tokens: torch.Tensor) -> int:
        """How many leading ones of `tokens` are stored at `start` and following already, bit for bit."""
        bits = _BITS[tokens.element_size()]
        tokens = tokens.to(self.device).view(bits)
        most = max(1, COMPARED_BYTES // (self.spec.num_layers * self.token_bytes))
        for begin, run in self._runs(table, start, start + tokens.shape[2]):
            for first in range(0, run.shape[2], most):
                part = run[:, :, first : first + most].view(bits)
                differs = part != tokens[:, :, begin + first : begin + first + part.shape[2]]
                if bool(differs.any()):
                    differs_at = differs.transpose(0, 2).flatten(1).any(1)
                    return begin + first + int(differs_at.byte().argmax())
        return tokens.shape[2]

    def _runs(self, table: PageTable, start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(offset, view [num_layers, 2, n, num_kv_heads, head_dim]) for every stretch of consecutive pages."""
        size = self.page_size
        position = start
        for first_page, num_pages in _stretches(table.pages[start // size : -(-stop // size)]):
            within = position % size
            count = min(num_pages * size - within, stop - position)
            slots = self.kv[:, :, first_page : first_page + num_pages].flatten(2, 3)
            yield position - start, slots[:, :, within : within + count]
            position += count


def _stretches(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first page, number of pages) of maximal stretches of consecutive pages."""
    begin = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield pages[begin], index - begin
            begin = index
