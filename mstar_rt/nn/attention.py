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
from typing import Protocol

import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool


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
    """

    table: PageTable
    num_new: int
    kind: StepKind


class AttentionPlan(Protocol):
    """A batch whose pages are reserved. Good for one step: every layer once, before the tables change again."""

    @property
    def positions(self) -> Sequence[int]:
        """Number of tokens stored before, per step: the position of its first new token."""
        ...

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v where the step appends, and attend.

        Args:    q [N, num_q_heads, head_dim], k and v [N, num_kv_heads, head_dim] in the dtype of the pool,
                 token-major, the steps one after the other, N = sum of num_new. num_q_heads is a multiple of
                 num_kv_heads; query head h reads key head h // (num_q_heads // num_kv_heads). Scores are scaled
                 by 1 / sqrt(head_dim).
        Returns: [N, num_q_heads, head_dim].
        """
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
