"""Paged attention on plain torch operations: the backend of CPUs, and the oracle for the others.

Blocks of equal history, equal number of new tokens and equal kind make one dense attention call, over the pages in
place where they lie evenly (see attention_pages). Without history the pages are only written, never read. Where every
sequence gets one more token, attention_single has less to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import Reservation
from mstar_rt.nn.attention import (
    AttentionStep,
    NewBlock,
    StepKind,
    StoredPages,
    blocks_of,
    cut,
    equal_counts,
    reserve_for,
)
from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.attention_pages import StoredTokens, lay_out
from mstar_rt.nn.attention_single import SingleTokens, are_single

Rows = slice | torch.Tensor


class Shape(NamedTuple):
    """What blocks must have in common to be attended to in one call."""

    num_stored: int
    num_new: int
    kind: StepKind
    is_read: bool


class Group(NamedTuple):
    """Equally shaped blocks, each of another sequence, whose pages are reached in one way."""

    rows: Rows
    """Their tokens among all keys and values."""
    query_rows: Rows
    """Their tokens among the queries; none where nobody reads what they attend to."""
    num_sequences: int
    shape: Shape
    tokens: StoredTokens | None
    """None for transient blocks over nothing."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v [tokens, heads, head_dim] of this group; returns the like of q."""
        q, k, v = self._by_sequence(q), self._by_sequence(k), self._by_sequence(v)
        if self.tokens is not None:
            k, v = self._with_stored(self.tokens, layer, k, v)
        return attend(q, k, v, causal=self.shape.kind is StepKind.CAUSAL_APPEND).flatten(0, 1)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep what the kind appends."""
        if self.tokens is not None and self.shape.kind.appends:
            self.tokens.write(layer, self._by_sequence(k), self._by_sequence(v))

    def _by_sequence(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.view(self.num_sequences, self.shape.num_new, *tokens.shape[1:])

    def _with_stored(
        self, tokens: StoredTokens, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the queries see: [sequences, stored + new, heads, head_dim] each. Stores k and v if the kind appends."""
        if not self.shape.kind.appends:
            stored_k, stored_v = tokens.read(layer)
            return torch.cat([stored_k, k], dim=1), torch.cat([stored_v, v], dim=1)
        tokens.write(layer, k, v)
        return tokens.read(layer) if self.shape.num_stored else (k, v)


class CpuAttention:
    """`AttentionBackend` for pools on any device that torch has."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._last = LastTransient(pool)

    def plan(self, steps: Sequence[AttentionStep]) -> CpuAttentionPlan:
        """See AttentionBackend.plan."""
        blocks = blocks_of(steps)
        appends = any(step.kind.appends for step in steps)
        return CpuAttentionPlan(self._pool, blocks, reserve_for(steps), None if appends else self._last)


class LastTransient:
    """How the last batch that appended nothing is laid out: a flow's steps see the same context time after time."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._seen: list[tuple[int, int, list[int]]] = []
        self._groups: list[Group] | None = None
        self._stored: StoredPages | None = None

    def groups(self, blocks: Sequence[NewBlock]) -> list[Group]:
        self._look_at(blocks)
        if self._groups is None:
            # Outside of inference mode, so that a differentiated step can use what another one laid out.
            with torch.inference_mode(False), torch.no_grad():
                self._groups = list(_groups(self._pool, blocks))
        return self._groups

    def stored(self, blocks: Sequence[NewBlock]) -> StoredPages:
        self._look_at(blocks)
        if self._stored is None:
            with torch.inference_mode(False), torch.no_grad():
                self._stored = _stored(self._pool, blocks)
        return self._stored

    def _look_at(self, blocks: Sequence[NewBlock]) -> None:
        """Forget what is known of another batch."""
        seen = [(block.num_stored, block.num_new, block.table.pages) for block in blocks]
        if seen != self._seen:
            self._groups = self._stored = None
            self._seen = [(num_stored, num_new, list(pages)) for num_stored, num_new, pages in seen]


class CpuAttentionPlan:
    """`AttentionPlan` made by CpuAttention."""

    def __init__(
        self,
        pool: KVPool,
        blocks: Sequence[NewBlock],
        reservation: Reservation,
        last: LastTransient | None = None,
    ) -> None:
        self.positions = [block.num_stored for block in blocks]
        self._num_tokens = sum(block.num_new for block in blocks)
        self._kv_shape = (self._num_tokens, pool.spec.num_kv_heads, pool.spec.head_dim)
        self._pool = pool
        self._blocks = blocks
        self._reservation = reservation
        self._last = last

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, read: Sequence[int] | None = None
    ) -> torch.Tensor:
        """See AttentionPlan.run."""
        self._check_stored(k, v)
        self._check_queries(q, k, read)
        if self._single is not None and read is None:
            return self._single.run(layer, q, k, v)
        groups = self._groups if read is None else list(_groups(self._pool, self._blocks, frozenset(read)))
        if len(groups) == 1 and groups[0].shape.is_read:
            return groups[0].attend(layer, q, k, v)
        out = torch.empty_like(q)
        for group in groups:
            new_k, new_v = k[group.rows], v[group.rows]
            if group.shape.is_read:
                out[group.query_rows] = group.attend(layer, q[group.query_rows], new_k, new_v)
            else:
                group.store(layer, new_k, new_v)
        return out

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """See AttentionPlan.store."""
        self._check_stored(k, v)
        for group in self._groups:
            group.store(layer, k[group.rows], v[group.rows])

    def stored(self) -> StoredPages | None:
        """See AttentionPlan.stored."""
        return None if self._last is None else self._last.stored(self._blocks)

    def parts(self, max_blocks: int) -> Sequence[CpuAttentionPlan]:
        """See AttentionPlan.parts."""
        return self.split(equal_counts(len(self._blocks), max_blocks))

    def split(self, counts: Sequence[int]) -> Sequence[CpuAttentionPlan]:
        """See AttentionPlan.split."""
        if len(counts) == 1:
            return [self]
        return [CpuAttentionPlan(self._pool, part, self._reservation) for part in cut(self._blocks, counts)]

    def rollback(self) -> None:
        """See AttentionPlan.rollback."""
        self._reservation.rollback()

    @cached_property
    def _single(self) -> SingleTokens | None:
        return SingleTokens(self._pool, self._blocks) if are_single(self._blocks) else None

    @cached_property
    def _groups(self) -> list[Group]:
        return list(_groups(self._pool, self._blocks)) if self._last is None else self._last.groups(self._blocks)

    def _check_stored(self, k: torch.Tensor, v: torch.Tensor) -> None:
        assert k.shape == v.shape == self._kv_shape, (k.shape, v.shape, self._kv_shape)
        assert k.dtype is v.dtype is self._pool.dtype, (k.dtype, v.dtype, self._pool.dtype)
        assert not k.requires_grad or not any(block.kind.appends for block in self._blocks), (
            "what is stored has no gradients: run appends under torch.inference_mode() or torch.no_grad()"
        )

    def _check_queries(self, q: torch.Tensor, k: torch.Tensor, read: Sequence[int] | None) -> None:
        num_tokens = self._num_tokens if read is None else sum(self._blocks[index].num_new for index in read)
        assert q.shape == (num_tokens, q.shape[1] // k.shape[1] * k.shape[1], k.shape[2]), (q.shape, num_tokens)
        assert q.dtype is k.dtype, (q.dtype, k.dtype)


def _stored(pool: KVPool, blocks: Sequence[NewBlock]) -> StoredPages:
    pages = [block.table.pages[: -(-block.num_stored // pool.page_size)] for block in blocks]
    width = max(2, *map(len, pages))
    filled = [[*of_block, *[0] * (width - len(of_block))] for of_block in pages]
    lengths = [block.num_stored for block in blocks]
    return StoredPages(pool.kv, torch.tensor(filled, device=pool.device), torch.tensor(lengths, device=pool.device))


def _groups(pool: KVPool, blocks: Sequence[NewBlock], read: Collection[int] | None = None) -> Iterator[Group]:
    """Blocks that are earlier in their sequence come first; `read` None: all are."""
    members: dict[Shape, list[int]] = {}
    first_rows: list[int] = []
    first_query_rows: list[int] = []
    num_rows = num_query_rows = 0
    for index, block in enumerate(blocks):
        shape = Shape(block.num_stored, block.num_new, block.kind, read is None or index in read)
        members.setdefault(shape, []).append(index)
        first_rows.append(num_rows)
        first_query_rows.append(num_query_rows)
        num_rows += block.num_new
        num_query_rows += block.num_new if shape.is_read else 0
    for shape, indices in sorted(members.items(), key=lambda item: item[0].num_stored):
        for run, tokens in _tokens(pool, [blocks[index].table for index in indices], shape):
            chosen = indices[run.start : run.stop]
            rows = _rows([first_rows[index] for index in chosen], shape.num_new)
            query_rows = _rows([first_query_rows[index] for index in chosen], shape.num_new * shape.is_read)
            yield Group(rows, query_rows, len(run), shape, tokens)


def _tokens(pool: KVPool, tables: Sequence[PageTable], shape: Shape) -> Iterator[tuple[range, StoredTokens | None]]:
    num_written = shape.num_new if shape.kind.appends else 0
    length = shape.num_stored + num_written
    if length == 0:
        yield range(len(tables)), None
        return
    num_pages = -(-length // pool.page_size)
    # Later blocks of the same sequence, or its append elsewhere in the batch, have pages that these must not see.
    page_lists = [table.pages if len(table.pages) == num_pages else table.pages[:num_pages] for table in tables]
    for run, layout in lay_out(page_lists, pool.page_size, length, num_written, pool.token_bytes, pool.device):
        yield run, layout.open(pool.kv, num_written)


def _rows(starts: Sequence[int], num_new: int) -> Rows:
    """A slice if the sequences follow one another in the batch, else an index."""
    if starts[-1] - starts[0] == (len(starts) - 1) * num_new:
        return slice(starts[0], starts[-1] + num_new)
    return (torch.tensor(starts)[:, None] + torch.arange(num_new)).flatten()
