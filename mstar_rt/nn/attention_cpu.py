"""Paged attention on plain torch operations: the backend of CPUs, and the oracle for the others.

Sequences of equal history, equal number of new tokens and equal kind make one dense attention call, over the pages in
place where they lie evenly (see attention_pages). Without history the pages are only written, never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import Reservation, reserve
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.attention_pages import PageLayout, lay_out

Rows = slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """What sequences must have in common to be attended to in one call."""

    num_stored: int
    num_new: int
    kind: StepKind


@dataclass(frozen=True, slots=True)
class Group:
    """Equally shaped sequences whose pages are reached in one way; `rows` are their tokens in the batch."""

    rows: Rows
    num_sequences: int
    shape: Shape
    layout: PageLayout | None
    """None for transient blocks over nothing."""

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """keys, values: pages of one layer; q, k, v [tokens, heads, head_dim] of this group; returns the like of q."""
        q, k, v = (x.unflatten(0, (self.num_sequences, self.shape.num_new)) for x in (q, k, v))
        if self.layout is not None:
            k = self._with_stored(self.layout, keys, k)
            v = self._with_stored(self.layout, values, v)
        return attend(q, k, v, causal=self.shape.kind is StepKind.CAUSAL_APPEND).flatten(0, 1)

    def _with_stored(self, layout: PageLayout, pages: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """What the queries see: [sequences, stored + new, heads, head_dim]. Stores `new` if the kind appends."""
        if not self.shape.kind.appends:
            return torch.cat([layout.read(pages), new], dim=1)
        layout.write(pages, new)
        return layout.read(pages) if self.shape.num_stored else new


class CpuAttention:
    """`AttentionBackend` for pools on any device that torch has."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool

    def plan(self, steps: Sequence[AttentionStep]) -> CpuAttentionPlan:
        """See AttentionBackend.plan."""
        shapes = [Shape(step.table.length, step.num_new, step.kind) for step in steps]
        appends = [step for step in steps if step.kind.appends]
        reservation = reserve([step.table for step in appends], [step.num_new for step in appends])
        groups = list(_groups(self._pool, [step.table for step in steps], shapes))
        return CpuAttentionPlan(self._pool, shapes, groups, reservation)


class CpuAttentionPlan:
    """`AttentionPlan` made by CpuAttention."""

    def __init__(
        self, pool: KVPool, shapes: Sequence[Shape], groups: Sequence[Group], reservation: Reservation
    ) -> None:
        self.positions = [shape.num_stored for shape in shapes]
        self._num_tokens = sum(shape.num_new for shape in shapes)
        self._pool = pool
        self._groups = groups
        self._reservation = reservation

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan.run."""
        self._check(q, k, v)
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        if len(self._groups) == 1:
            return self._groups[0].attend(keys, values, q, k, v)
        out = torch.empty_like(q)
        for group in self._groups:
            rows = group.rows
            out[rows] = group.attend(keys, values, q[rows], k[rows], v[rows])
        return out

    def rollback(self) -> None:
        """See AttentionPlan.rollback."""
        self._reservation.rollback()

    def _check(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        spec = self._pool.spec
        assert k.shape == v.shape == (self._num_tokens, spec.num_kv_heads, spec.head_dim), (k.shape, v.shape)
        assert q.shape == (self._num_tokens, q.shape[1] // spec.num_kv_heads * spec.num_kv_heads, spec.head_dim), (
            q.shape
        )
        assert q.dtype is k.dtype is v.dtype is self._pool.dtype, (q.dtype, k.dtype, v.dtype, self._pool.dtype)
        assert not k.requires_grad, "the cache is for inference: run under torch.inference_mode() or torch.no_grad()"


def _groups(pool: KVPool, tables: Sequence[PageTable], shapes: Sequence[Shape]) -> Iterator[Group]:
    members: dict[Shape, list[int]] = {}
    first_rows: list[int] = []
    num_rows = 0
    for index, shape in enumerate(shapes):
        members.setdefault(shape, []).append(index)
        first_rows.append(num_rows)
        num_rows += shape.num_new
    for shape, indices in members.items():
        for run, layout in _layouts(pool, [tables[index] for index in indices], shape):
            starts = [first_rows[indices[position]] for position in run]
            yield Group(_rows(starts, shape.num_new), len(run), shape, layout)


def _layouts(pool: KVPool, tables: Sequence[PageTable], shape: Shape) -> Iterator[tuple[range, PageLayout | None]]:
    num_written = shape.num_new if shape.kind.appends else 0
    length = shape.num_stored + num_written
    if length == 0:
        yield range(len(tables)), None
        return
    num_pages = -(-length // pool.page_size)
    # A table that is appended to elsewhere in the batch has pages that this group must not see.
    page_lists = [table.pages if len(table.pages) == num_pages else table.pages[:num_pages] for table in tables]
    yield from lay_out(page_lists, pool.page_size, length, num_written, pool.token_bytes, pool.device)


def _rows(starts: Sequence[int], num_new: int) -> Rows:
    """A slice if the sequences follow one another in the batch, else an index."""
    if starts[-1] - starts[0] == (len(starts) - 1) * num_new:
        return slice(starts[0], starts[-1] + num_new)
    return (torch.tensor(starts)[:, None] + torch.arange(num_new)).flatten()
