"""Paged attention by FlashInfer's kernels, for pools on a CUDA device.

Not run on a GPU yet: what is tested are the index arrays and the calls, against a stand-in that computes what
FlashInfer 0.7 documents (tests/nn/test_attention_flashinfer.py), and the same batches on the real library under the
`cuda` marker.

A batch becomes at most four kernel calls per layer: causal appends, block appends, and for transient blocks one over
what is stored and one over the blocks themselves, merged by their log-sum-exps, so that nothing is written for them.
A step of several blocks is an entry per block: all of its keys and values are written first, and each entry's pages end
where its block does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import Reservation
from mstar_rt.nn.attention import AttentionStep, NewBlock, StepKind, blocks_of, cut, equal_counts, reserve_for
from mstar_rt.nn.attention_cpu import CpuAttentionPlan
from mstar_rt.nn.attention_index import PagedIndex, TokenIndex, indptr, paged_index, token_index

WORKSPACE_BYTES = 256 * 1024 * 1024
SUPPORTED_DTYPES = (torch.float16, torch.bfloat16)
SUPPORTED_HEAD_DIMS = (64, 128, 256)

Belongs = Callable[[NewBlock], bool]
"""Whether a block is of a part."""


def supports(pool: KVPool) -> bool:
    """Whether FlashInfer has kernels for the pool's dtype and head size."""
    return pool.dtype in SUPPORTED_DTYPES and pool.spec.head_dim in SUPPORTED_HEAD_DIMS


class FlashInferAttention:
    """`AttentionBackend` on FlashInfer. The kernels' state is per backend: a plan is good until the next one runs.

    `library` is the flashinfer package, or what stands in for it.
    """

    def __init__(self, pool: KVPool, library: Any = None) -> None:
        self.pool = pool
        self.library = library = library or importlib.import_module("flashinfer")
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.device)
        paged = library.BatchPrefillWithPagedKVCacheWrapper
        self.causal, self.block, self.history = (paged(workspace, kv_layout="NHD") for _ in range(3))
        self.itself = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, kv_layout="NHD")

    def plan(self, steps: Sequence[AttentionStep]) -> FlashInferPlan:
        """See AttentionBackend.plan."""
        blocks = blocks_of(steps)
        return FlashInferPlan(self, blocks, reserve_for(steps))


@dataclass(frozen=True, slots=True)
class Part:
    """The blocks of a batch that share a kernel call, and the rows of their tokens."""

    blocks: list[NewBlock]
    rows: torch.Tensor
    """int64 [tokens] on the device."""

    @property
    def stored(self) -> list[int]:
        return [block.num_stored for block in self.blocks]

    @property
    def num_new(self) -> list[int]:
        return [block.num_new for block in self.blocks]

    @property
    def lengths_after(self) -> list[int]:
        return [block.length_after for block in self.blocks]

    def index(self, lengths: Sequence[int], page_size: int) -> PagedIndex:
        return paged_index([block.table.pages for block in self.blocks], lengths, self.num_new, page_size)


class FlashInferPlan:
    """`AttentionPlan` made by FlashInferAttention; the kernels are planned when the number of query heads is known."""

    def __init__(self, backend: FlashInferAttention, blocks: Sequence[NewBlock], reservation: Reservation) -> None:
        self.positions = [block.num_stored for block in blocks]
        self._backend = backend
        self._pool = backend.pool
        self._blocks = blocks
        self._reservation = reservation
        self._num_q_heads: int | None = None
        self._appends = self._part(lambda block: block.kind.appends)
        self._causal = self._part(lambda block: block.kind is StepKind.CAUSAL_APPEND)
        self._block = self._part(lambda block: block.kind is StepKind.BLOCK_APPEND)
        self._transient = self._part(lambda block: not block.kind.appends)
        self._history = self._part(lambda block: not block.kind.appends and block.num_stored > 0)
        self._append_index = self._plan_append() if self._appends.blocks else None

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, read: Sequence[int] | None = None
    ) -> torch.Tensor:
        """See AttentionPlan.run."""
        if q.requires_grad or k.requires_grad or v.requires_grad:
            # The kernels have no gradients: the pages are gathered and attended to by torch's operations.
            return CpuAttentionPlan(self._pool, self._blocks, self._reservation).run(layer, q, k, v, read)
        if read is not None:
            return self._run_read(layer, q, k, v, read)
        if self._num_q_heads != q.shape[1]:
            self._plan_kernels(q.shape[1])
        pages = (self._pool.keys(layer), self._pool.values(layer))
        out = torch.empty_like(q)
        self._append(pages, k, v)
        for part, kernel in ((self._causal, self._backend.causal), (self._block, self._backend.block)):
            if part.blocks:
                out[part.rows] = kernel.run(q[part.rows], pages)
        if self._transient.blocks:
            self._run_transient(pages, q, k, v, out)
        return out

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """See AttentionPlan.store."""
        self._append((self._pool.keys(layer), self._pool.values(layer)), k, v)

    def stored(self) -> None:
        """See AttentionPlan.stored: this backend's kernels read the pages themselves."""

    def parts(self, max_blocks: int) -> Sequence[FlashInferPlan]:
        """See AttentionPlan.parts."""
        return self.split(equal_counts(len(self._blocks), max_blocks))

    def split(self, counts: Sequence[int]) -> Sequence[FlashInferPlan]:
        """See AttentionPlan.split."""
        if len(counts) == 1:
            return [self]
        return [FlashInferPlan(self._backend, part, self._reservation) for part in cut(self._blocks, counts)]

    def rollback(self) -> None:
        """See AttentionPlan.rollback."""
        self._reservation.rollback()

    def _run_read(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, read: Sequence[int]
    ) -> torch.Tensor:
        """Everything is stored first; the plan of the blocks that are read then stores theirs again, the same."""
        self.store(layer, k, v)
        rows = self._rows(read)
        part = FlashInferPlan(self._backend, [self._blocks[index] for index in read], self._reservation)
        self._num_q_heads = None  # the kernels are planned for the part now
        return part.run(layer, q, k[rows], v[rows])

    def _append(self, pages: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor, v: torch.Tensor) -> None:
        if self._append_index is None:
            return
        rows = self._appends.rows
        batch_indices, positions, kv_indices, kv_indptr, last_page_len = self._append_index
        self._backend.library.append_paged_kv_cache(
            k[rows], v[rows], batch_indices, positions, pages, kv_indices, kv_indptr, last_page_len, kv_layout="NHD"
        )

    def _run_transient(
        self,
        pages: tuple[torch.Tensor, torch.Tensor],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        rows = self._transient.rows
        own, own_lse = self._backend.itself.run(q[rows], k[rows], v[rows], return_lse=True)
        out[rows] = own
        if not self._history.blocks:
            return
        over_history = self._history.rows
        lse = own_lse.new_empty(q.shape[:2])
        lse[rows] = own_lse
        past, past_lse = self._backend.history.run(q[over_history], pages, return_lse=True)
        merged, _ = self._backend.library.merge_state(past, past_lse, out[over_history], lse[over_history])
        out[over_history] = merged

    def _part(self, belongs: Belongs) -> Part:
        chosen = [index for index, block in enumerate(self._blocks) if belongs(block)]
        return Part([self._blocks[index] for index in chosen], self._rows(chosen))

    def _rows(self, chosen: Sequence[int]) -> torch.Tensor:
        """Rows of the tokens of some blocks, in order."""
        first = indptr([block.num_new for block in self._blocks])
        rows = [np.arange(first[index], first[index + 1]) for index in chosen]
        return self._on_device(np.concatenate(rows).astype(np.int64) if rows else np.empty(0, np.int64))

    def _plan_append(self) -> tuple[torch.Tensor, ...]:
        part = self._appends
        index = part.index(part.lengths_after, self._pool.page_size)
        tokens: TokenIndex = token_index(part.stored, part.num_new)
        arrays = (
            tokens.batch_indices, tokens.positions, index.kv_indices, index.kv_indptr, index.kv_last_page_len
        )  # fmt: skip
        return tuple(self._on_device(array) for array in arrays)

    def _plan_kernels(self, num_q_heads: int) -> None:
        self._num_q_heads = num_q_heads
        backend = self._backend
        self._plan_paged(backend.causal, self._causal, self._causal.lengths_after, causal=True)
        self._plan_paged(backend.block, self._block, self._block.lengths_after, causal=False)
        self._plan_paged(backend.history, self._history, self._history.stored, causal=False)
        if self._transient.blocks:
            ends = torch.from_numpy(indptr(self._transient.num_new))
            spec = self._pool.spec
            backend.itself.plan(
                ends, ends, num_q_heads, spec.num_kv_heads, spec.head_dim, causal=False, **self._dtypes()
            )

    def _plan_paged(self, kernel: Any, part: Part, lengths: Sequence[int], causal: bool) -> None:
        if not part.blocks:
            return
        index = part.index(lengths, self._pool.page_size)
        # Host arrays: FlashInfer schedules on the host and copies them over itself.
        arrays = (index.qo_indptr, index.kv_indptr, index.kv_indices, index.kv_last_page_len)
        spec = self._pool.spec
        kernel.plan(
            *(torch.from_numpy(array) for array in arrays),
            self._num_q_heads,
            spec.num_kv_heads,
            spec.head_dim,
            self._pool.page_size,
            causal=causal,
            **self._dtypes(),
        )

    def _dtypes(self) -> dict[str, torch.dtype]:
        return {"q_data_type": self._pool.dtype, "kv_data_type": self._pool.dtype}

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._pool.device)
