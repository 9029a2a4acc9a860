"""The batches that are measured, and the memory that they read."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """`num_sequences` equally long sequences, each with `num_new` tokens after `num_stored` in pages of `page_size`."""

    name: str
    num_sequences: int
    num_new: int
    num_heads: int
    head_dim: int
    page_size: int
    num_stored: int

    @property
    def length(self) -> int:
        return self.num_stored + self.num_new

    @property
    def num_pages_each(self) -> int:
        return -(-self.length // self.page_size)


CASES = (
    *(Case(f"96 candidates, {pages} pages of 18", 96, 18, 4, 32, 18, 18 * pages) for pages in (0, 1, 3, 8)),
    Case("1 rollout, 30 pages of 66", 1, 66, 3, 64, 66, 30 * 66),
    Case("16 rollouts, 30 pages of 66", 16, 66, 3, 64, 66, 30 * 66),
    Case("1 decode, 1000 tokens", 1, 1, 12, 64, 16, 999),
    Case("8 decodes, 1000 tokens", 8, 1, 12, 64, 16, 999),
)


class Memory:
    """Random stored tokens, in each page layout and each placement, and the new tokens of one step."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case = case
        torch.manual_seed(0)
        batch, pages = case.num_sequences, case.num_pages_each
        self.dense = torch.randn(2, batch, pages * case.page_size, case.num_heads, case.head_dim).to(dtype)
        self.q, k, v = torch.randn(3, batch * case.num_new, case.num_heads, case.head_dim).to(dtype)
        self.new = (k, v)
        order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(1))
        self.scattered_ids = order.view(batch, pages)
        in_pages = self.dense.view(2, batch * pages, case.page_size, case.num_heads, case.head_dim)
        self.even = in_pages.clone()
        """[2, pages, page_size, heads, head_dim]; sequence i lies in pages i * num_pages_each and following."""
        self.scattered = torch.empty_like(in_pages)
        """The same with page j of sequence i in page scattered_ids[i, j]."""
        self.scattered[:, order] = in_pages
        self.head_major = self.scattered.transpose(2, 3).contiguous()
        """[2, pages, heads, page_size, head_dim]."""

        position = torch.arange(case.num_stored, case.length)
        slots = self.scattered_ids[:, position // case.page_size] * case.page_size + position % case.page_size
        self.slots = slots.flatten()
        self.page_ids = self.scattered_ids.flatten()
        head = torch.arange(case.num_heads)
        self.head_page_ids = (self.scattered_ids[:, None] * case.num_heads + head[None, :, None]).flatten()
