"""The tensors behind the pages of one cache."""

from __future__ import annotations

from typing import Protocol

import torch

from mstar_rt.cache.allocator import PageAllocator
from mstar_rt.cache.page_table import PageTable

MAX_EXTENTS = 128
"""Batches of up to about this many sequences should find an empty extent each."""


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
