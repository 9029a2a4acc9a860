"""Attention over paged memory: the one contract that every backend keeps.

A step of the engine plans once and runs every layer:

    plan = backend.plan(steps)              # reserves the pages of all appends, or raises and changes nothing
    for layer in range(num_layers):
        out = plan.run(layer, q, k, v)      # stores the new keys and values, attends
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import Reservation, reserve


class StepKind(Enum):
    """What the new tokens of a sequence see, and whether they stay. All of them see everything stored before."""

    CAUSAL_APPEND = "causal_append"
    """Each new token also sees the new ones up to itself; they stay. Text, audio codes."""
    BLOCK_APPEND = "block_append"
    """Each new token also sees its whole block; they stay. A video frame, a bidirectional prefix."""
    TRANSIENT_BLOCK = "transient_block"
    """Each new token also sees its whole block; nothing stays behind. A flow-matching suffix."""

    @property
    def appends(self) -> bool:
        return self is not StepKind.TRANSIENT_BLOCK


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """One sequence's part of a batch: `num_new` >= 1 tokens after the `table.length` that are stored.

    In one batch a sequence may be appended to once and seen by any number of transient blocks, which see it as it was
    before the batch.

    With `block_tokens` a block append is several blocks in a row, of which each sees what is stored, the earlier ones
    and itself: the frames of a video at once. Without, all new tokens are one block.

    `appended`: an earlier part of the same call has appended the tokens and run some layers of them, this one runs
    others. They are the last ones of the table, and what is stored are those before them; no page is taken, and none
    given back by a rollback.
    """

    table: PageTable
    num_new: int
    kind: StepKind
    block_tokens: int | None = None
    appended: bool = False

    def __post_init__(self) -> None:
        assert self.kind.appends or not self.appended, f"a step of kind {self.kind.value} appends nothing"
        if self.block_tokens is not None:
            assert self.kind is StepKind.BLOCK_APPEND, f"a step of kind {self.kind.value} is one block"
            assert self.num_new % self.block_tokens == 0, f"{self.num_new} tokens are no blocks of {self.block_tokens}"


@dataclass(frozen=True, slots=True)
class NewBlock:
    """New tokens of one sequence that see the same: the first `num_stored` tokens, and each other as `kind` says."""

    table: PageTable
    num_stored: int
    num_new: int
    kind: StepKind

    @property
    def length_after(self) -> int:
        return self.num_stored + self.num_new


def blocks_of(steps: Sequence[AttentionStep]) -> list[NewBlock]:
    """The blocks of all steps, in order; to be asked before the tables grow."""
    blocks = []
    for step in steps:
        start, size = step.table.length, step.block_tokens or step.num_new
        if step.appended:
            start -= step.num_new
        blocks += [NewBlock(step.table, start + done, size, step.kind) for done in range(0, step.num_new, size)]
    return blocks


def reserve_for(steps: Sequence[AttentionStep]) -> Reservation:
    """The pages of all appends of a batch.

    Raises: what cache.reservation.reserve does; nothing changed.
    """
    appends = [step for step in steps if step.kind.appends and not step.appended]
    reservation = reserve([step.table for step in appends], [step.num_new for step in appends])
    for step in steps:
        if step.appended:
            step.table.write_again(step.num_new)
    return reservation


def equal_counts(num_blocks: int, max_blocks: int) -> list[int]:
    """Parts of at most `max_blocks`, as few as that allows and as equal."""
    num_parts = max(1, -(-num_blocks // max_blocks))
    edges = [num_blocks * part // num_parts for part in range(num_parts + 1)]
    return [last - first for first, last in pairwise(edges)]


def cut(blocks: Sequence[NewBlock], counts: Sequence[int]) -> list[Sequence[NewBlock]]:
    """Consecutive parts of so many blocks each."""
    edges = list(accumulate(counts, initial=0))
    assert edges[-1] == len(blocks), f"{len(blocks)} blocks are not cut into parts of {list(counts)}"
    return [blocks[first:last] for first, last in pairwise(edges)]


class StoredPages(NamedTuple):
    """The tokens of some sequences: the first `lengths` [B] int64 that lie in `pages` [B, P] int64 of `kv`.

    kv [num_layers, 2 (key, value), num_pages, page_size, num_kv_heads, head_dim]; P is at least 2, and what is beyond
    the length of a sequence is anything.
    """

    kv: torch.Tensor
    pages: torch.Tensor
    lengths: torch.Tensor


class AttentionPlan(Protocol):
    """A batch whose pages are reserved. Good for one step: every layer once, before the tables change again."""

    @property
    def positions(self) -> Sequence[int]:
        """Number of tokens before each block, the earlier blocks of its step included: where its first token stands.

        One entry per block of every step, so one per step where `block_tokens` is not given.
        """
        ...

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, read: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Store k and v where the step appends, and attend.

        Differentiable in q, k and v if no block appends: what is stored counts as constant.

        Args:    q [N, num_q_heads, head_dim], k and v [N, num_kv_heads, head_dim] in the dtype of the pool,
                 token-major, the steps one after the other, N = sum of num_new. num_q_heads is a multiple of
                 num_kv_heads; query head h reads key head h // (num_q_heads // num_kv_heads). Scores are scaled
                 by 1 / sqrt(head_dim).
                 read: ascending indices of blocks; only theirs are the tokens of q then. None: all.
        Returns: the like of q.
        """
        ...

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """`run` for no queries: store k and v where the step appends."""
        ...

    def stored(self) -> StoredPages | None:
        """What transient blocks see besides themselves, for code that attends without this plan.

        None where blocks append, and from backends whose kernels read the pages themselves.
        """
        ...

    def parts(self, max_blocks: int) -> Sequence[AttentionPlan]:
        """Plans over at most `max_blocks` blocks each, in order: every layer of one before the first of the next.

        They compute what the whole does, with less memory at a time. Only the whole is rolled back.
        """
        ...

    def split(self, counts: Sequence[int]) -> Sequence[AttentionPlan]:
        """Like parts, of so many blocks each: for calls of one step that do not run the same layers."""
        ...

    def rollback(self) -> None:
        """Take the appends back, for a step that failed: each table has the length that it had before plan()."""
        ...


class AttentionBackend(Protocol):
    """Plans batches over one pool."""

    def plan(self, steps: Sequence[AttentionStep]) -> AttentionPlan:
        """Reserve pages for every append of the batch and lay out the work that all layers share.

        Raises:  PagesExhausted: retryable; no table, page or reference count changed.
                 InvalidArgument: a sequence would outgrow what its cache is declared for; nothing changed.
        """
        ...


def select_backend(device: torch.device | str, pool: KVPool) -> AttentionBackend:
    """FlashInfer where there is a CUDA device, the package and a kernel for the pool's dtype and head size.

    Else the CPU backend, which runs on any device that torch has.
    """
    # The backends import this module.
    from mstar_rt.nn.attention_cpu import CpuAttention
    from mstar_rt.nn.attention_flashinfer import FlashInferAttention, supports

    device = torch.device(device)
    assert device.type == pool.device.type, f"the pool is on {pool.device}, the model on {device}"
    has_library = torch.cuda.is_available() and importlib.util.find_spec("flashinfer") is not None
    if device.type == "cuda" and has_library and supports(pool):
        return FlashInferAttention(pool)
    return CpuAttention(pool)
