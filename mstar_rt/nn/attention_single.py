"""Paged attention for batches in which every sequence gets one more token, as text is written.

Sequences are of all lengths then, and nearly every step has other pages. What is the same for all of them is done once
in a layer: new keys and values go to their places together, and query heads that share a key head lie side by side as
they come. What is left is one call for each length; which sequences share it does not change what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from mstar_rt.cache.pool import KVPool
from mstar_rt.nn.attention import NewBlock, StepKind
from mstar_rt.nn.attention_pages import EvenPages, ScatteredPages, lay_out


def are_single(blocks: Sequence[NewBlock]) -> bool:
    return bool(blocks) and all(block.num_new == 1 and block.kind is StepKind.CAUSAL_APPEND for block in blocks)


class Group(NamedTuple):
    """Consecutive sequences of equal length: `read` gives keys or values, [n, kv heads, length, head_dim], of a half of
    a layer, which are the keys and then the values of each layer."""

    first: int
    stop: int
    read: Callable[[int], torch.Tensor]


class SingleTokens:
    """One batch whose pages are reserved, each of its blocks being one causal token."""

    def __init__(self, pool: KVPool, blocks: Sequence[NewBlock]) -> None:
        order = sorted(range(len(blocks)), key=lambda index: blocks[index].num_stored)
        self._order = None if order == list(range(len(blocks))) else torch.tensor(order, device=pool.device)
        self._back = None if self._order is None else self._order.argsort()
        slots = [_slot(block, pool.page_size) for block in blocks]
        self._slots = torch.tensor(slots, device=pool.device)
        self._tokens = pool.kv.flatten(0, 1).flatten(1, 2).unbind()
        self._groups = list(_groups(pool, [blocks[index] for index in order]))
        self._num_kv_heads = pool.spec.num_kv_heads

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan.run."""
        keys, values = 2 * layer, 2 * layer + 1
        self._tokens[keys].index_copy_(0, self._slots, k)
        self._tokens[values].index_copy_(0, self._slots, v)
        ordered = q if self._order is None else q[self._order]
        by_key_head = ordered.view(len(q), self._num_kv_heads, -1, q.shape[-1])
        attended = [
            scaled_dot_product_attention(by_key_head[first:stop], read(keys), read(values))
            for first, stop, read in self._groups
        ]
        out = (attended[0] if len(attended) == 1 else torch.cat(attended)).reshape(q.shape)
        return out if self._back is None else out[self._back]


def _slot(block: NewBlock, page_size: int) -> int:
    page, offset = divmod(block.num_stored, page_size)
    return block.table.pages[page] * page_size + offset


def _groups(pool: KVPool, blocks: Sequence[NewBlock]) -> Iterator[Group]:
    """`blocks` by ascending length."""
    first = 0
    while first < len(blocks):
        length, stop = blocks[first].length_after, first + 1
        while stop < len(blocks) and blocks[stop].length_after == length:
            stop += 1
        num_pages = -(-length // pool.page_size)
        pages = [block.table.pages[:num_pages] for block in blocks[first:stop]]
        for run, layout in lay_out(pages, pool.page_size, length, 0, pool.token_bytes, pool.device):
            read = _even(layout, pool.kv) if isinstance(layout, EvenPages) else _scattered(layout, pool.kv)
            yield Group(first + run.start, first + run.stop, read)
        first = stop


def _even(layout: EvenPages, kv: torch.Tensor) -> Callable[[int], torch.Tensor]:
    _, half_stride, page_stride, token_stride, head_stride, _ = kv.stride()
    halves = kv.as_strided(
        (2 * kv.shape[0], layout.num_sequences, kv.shape[4], layout.length, kv.shape[5]),
        (half_stride, layout.stride_pages * page_stride, head_stride, token_stride, 1),
        kv.storage_offset() + layout.first_page * page_stride,
    ).unbind()
    return halves.__getitem__


def _scattered(layout: ScatteredPages, kv: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """Copies."""
    halves = kv.flatten(0, 1).unbind()

    def read(half: int) -> torch.Tensor:
        copied = halves[half].index_select(0, layout.page_ids).view(layout.num_sequences, -1, *kv.shape[4:])
        return copied[:, : layout.length].transpose(1, 2)

    return read
