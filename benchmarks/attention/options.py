"""Each way to store one step's keys and values and attend, as a function that returns [N, heads, head_dim]."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention.cases import Memory
from mstar_rt.cache.pool import KVPool
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind, select_backend

Option = Callable[[], torch.Tensor]


def options(memory: Memory) -> dict[str, Option]:
    """All options over one memory, the shipped backend last."""
    case = memory.case
    batch, length, heads, head_dim = case.num_sequences, case.length, case.num_heads, case.head_dim
    queries = memory.q.view(batch, case.num_new, heads, head_dim).transpose(1, 2)
    new = [x.view(batch, case.num_new, heads, head_dim) for x in memory.new]

    def fused(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return token_major(scaled_dot_product_attention(queries, keys, values))

    def products(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.flatten(0, 1) for x in (queries, keys, values))
        scale = 1 / math.sqrt(head_dim)
        scores = torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=scale)
        return token_major(torch.bmm(torch.softmax(scores, -1), v).view(batch, heads, -1, head_dim))

    def token_major(out: torch.Tensor) -> torch.Tensor:
        return out.transpose(1, 2).reshape(-1, heads, head_dim)

    def store_scattered() -> None:
        for pages, x in zip(memory.scattered, memory.new, strict=True):
            pages.view(-1, heads, head_dim).index_copy_(0, memory.slots, x)

    def gathered() -> list[torch.Tensor]:
        store_scattered()
        copies = (pages.index_select(0, memory.page_ids) for pages in memory.scattered)
        return [x.view(batch, -1, heads, head_dim)[:, :length].transpose(1, 2) for x in copies]

    def gathered_head_major() -> list[torch.Tensor]:
        for pages, x in zip(memory.head_major, memory.new, strict=True):
            pages.transpose(1, 2)[memory.slots // case.page_size, memory.slots % case.page_size] = x
        rows = (pages.view(-1, case.page_size, head_dim) for pages in memory.head_major)
        copies = (x.index_select(0, memory.head_page_ids) for x in rows)
        return [x.view(batch, heads, -1, head_dim)[:, :, :length] for x in copies]

    def in_place() -> list[torch.Tensor]:
        views = [pages.view(batch, -1, heads, head_dim)[:, :length] for pages in memory.even]
        for view, x in zip(views, new, strict=True):
            view[:, case.num_stored :].copy_(x)
        return [view.transpose(1, 2) for view in views]

    def one_by_one() -> torch.Tensor:
        store_scattered()
        outs = []
        for ids, q in zip(memory.scattered_ids, queries, strict=True):
            k, v = (pages.index_select(0, ids).view(-1, heads, head_dim)[:length] for pages in memory.scattered)
            outs.append(scaled_dot_product_attention(q[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]))
        return token_major(torch.cat(outs))

    return {
        "gather each sequence, fused": one_by_one,
        "gather the batch, fused": lambda: fused(*gathered()),
        "gather head-major pages, fused": lambda: fused(*gathered_head_major()),
        "gather head-major pages, products": lambda: products(*gathered_head_major()),
        "even pages in place, fused": lambda: fused(*in_place()),
        "even pages in place, products": lambda: products(*in_place()),
        "backend, scattered pages": shipped(memory, even=False),
        "backend, even pages": shipped(memory, even=True),
    }


def shipped(memory: Memory, even: bool) -> Option:
    """One layer of the CPU backend over the same tokens, planned once."""
    case, pool = memory.case, filled_pool(memory, even)
    tables = [pool.new_table() for _ in range(case.num_sequences)]
    if not even:  # growing page by page in turn, without extents, interleaves the sequences
        for _ in range(case.num_stored // case.page_size):
            for table in tables:
                table.append(case.page_size)
    for table in tables:
        table.append(case.num_stored - table.length)
    for index, table in enumerate(tables):
        for number, page in enumerate(table.pages):
            here = slice(number * case.page_size, (number + 1) * case.page_size)
            pool.kv[0, :, page] = memory.dense[:, index, here]
    steps = [AttentionStep(table, case.num_new, StepKind.BLOCK_APPEND) for table in tables]
    plan = select_backend("cpu", pool).plan(steps)
    return lambda: plan.run(0, memory.q, *memory.new)


def filled_pool(memory: Memory, even: bool) -> KVPool:
    case = memory.case
    spec = KVSpec(1, case.num_heads, case.head_dim, case.page_size, case.num_pages_each * case.page_size)
    extent = case.num_pages_each if even else 1
    return KVPool(spec, case.num_sequences * case.num_pages_each, dtype=memory.q.dtype, extent_pages=extent)


def flex(memory: Memory) -> Option:
    """FlexAttention, compiled, over the pages where they lie: a block mask maps each sequence to its pages.

    The pool is one long sequence of keys in which the pages of other sequences are masked.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case = memory.case
    batch, heads, head_dim = case.num_sequences, case.num_heads, case.head_dim
    owner = torch.empty(memory.even.shape[1] * case.page_size, dtype=torch.long)
    owner.view(-1, case.page_size)[:] = torch.arange(batch).repeat_interleave(case.num_pages_each)[:, None]
    offset = torch.arange(case.num_pages_each * case.page_size).repeat(batch)

    def belongs(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (owner[k] == b) & (offset[k] < case.length)

    mask = create_block_mask(belongs, batch, None, case.num_new, len(owner), device="cpu")
    compiled = torch.compile(flex_attention)
    queries = memory.q.view(batch, case.num_new, heads, head_dim).transpose(1, 2)

    def run() -> torch.Tensor:
        keys, values = (x.view(1, -1, heads, head_dim).transpose(1, 2) for x in memory.even)
        for pages, x in zip(memory.even, memory.new, strict=True):
            view = pages.view(batch, -1, heads, head_dim)
            view[:, case.num_stored : case.length].copy_(x.view(batch, -1, heads, head_dim))
        k, v = (x.expand(batch, -1, -1, -1) for x in (keys, values))
        return compiled(queries, k, v, block_mask=mask).transpose(1, 2).reshape(-1, heads, head_dim)

    return run
