"""A paged cache and its backend, run side by side with dense sequences that say what it must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.model.served import KVSpec
from mstar_rt.nn.attention import AttentionBackend, AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from tests.nn.dense_reference import DenseSequence, TokenSource

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 1e-2, torch.bfloat16: 6e-2}


class Twin:
    """A paged cache beside dense sequences that say what it must give."""

    def __init__(
        self,
        page_size: int = 4,
        num_pages: int = 64,
        extent_pages: int | None = None,
        num_kv_heads: int = 2,
        q_heads_per_kv_head: int = 1,
        head_dim: int = 8,
        dtype: torch.dtype = torch.float64,
        num_layers: int = 2,
        device: str = "cpu",
        make_backend: Callable[[KVPool], AttentionBackend] = CpuAttention,
    ) -> None:
        spec = KVSpec(num_layers, num_kv_heads, head_dim, page_size, max_sequence_tokens=10_000)
        self.pool = KVPool(spec, num_pages, device=device, dtype=dtype, extent_pages=extent_pages)
        self.pool.kv.fill_(float("nan"))  # whatever was never written must never be seen
        self.backend = make_backend(self.pool)
        self.tokens = TokenSource(num_kv_heads * q_heads_per_kv_head, num_kv_heads, head_dim, dtype)
        self.tables: list[PageTable] = []
        self.dense: list[DenseSequence] = []

    def create(self) -> int:
        self.tables.append(self.pool.new_table())
        spec = self.pool.spec
        self.dense.append(DenseSequence.empty(spec.num_layers, spec.num_kv_heads, spec.head_dim, self.pool.dtype))
        return len(self.tables) - 1

    def fork(self, index: int) -> int:
        self.tables.append(self.tables[index].fork())
        self.dense.append(self.dense[index].fork())
        return len(self.tables) - 1

    def truncate(self, index: int, length: int) -> None:
        self.tables[index].truncate(length)
        self.dense[index].truncate(length)

    def step(self, batch: list[tuple[int, int, StepKind]]) -> None:
        """Run (sequence, num_new, kind) of a batch through both and compare every layer."""
        steps = [AttentionStep(self.tables[index], num_new, kind) for index, num_new, kind in batch]
        stored = [self.dense[index].length for index, _, _ in batch]
        plan = self.backend.plan(steps)
        assert list(plan.positions) == stored
        sizes = [num_new for _, num_new, _ in batch]
        for layer in range(self.pool.spec.num_layers):
            q, k, v = self.tokens.draw(sum(sizes))
            got = plan.run(layer, *(x.to(self.pool.device) for x in (q, k, v))).cpu()
            parts = zip(batch, stored, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
            expected = torch.cat(
                [self.dense[index].step(layer, kind, past, *qkv) for (index, _, kind), past, *qkv in parts]
            )
            assert got.shape == q.shape
            assert got.dtype is q.dtype
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE[q.dtype])
        assert [table.length for table in self.tables] == [dense.length for dense in self.dense]

    def live_through(self, changes: Sequence[tuple[Any, ...]]) -> None:
        """Apply what `histories` made up."""
        for _ in range(3):
            self.create()
        for name, *details in changes:
            if name == "create":
                self.create()
            elif name == "fork":
                self.fork(details[0] % len(self.tables))
            elif name == "truncate":
                index = details[0] % len(self.tables)
                self.truncate(index, int(details[1] * self.dense[index].length))
            else:
                self.step(self._one_append_each(details[0]))

    def _one_append_each(self, batch: Sequence[tuple[int, int, StepKind]]) -> list[tuple[int, int, StepKind]]:
        kept: list[tuple[int, int, StepKind]] = []
        appended: set[int] = set()
        for number, num_new, kind in batch:
            index = number % len(self.tables)
            if kind.appends and index in appended:
                continue
            kept.append((index, num_new, kind))
            appended |= {index} if kind.appends else set()
        return kept


def histories() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """What may happen to the sequences of a cache, with batches of any mix of kinds and sizes."""
    step = st.tuples(st.integers(0, 7), st.integers(1, 9), st.sampled_from(list(StepKind)))
    change = st.one_of(
        st.just(("create",)),
        st.tuples(st.just("fork"), st.integers(0, 7)),
        st.tuples(st.just("truncate"), st.integers(0, 7), st.floats(0, 1)),
        st.tuples(st.just("step"), st.lists(step, min_size=1, max_size=6)),
    )
    return st.lists(change, min_size=4, max_size=14)
