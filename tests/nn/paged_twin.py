"""A paged cache and its backend, run side by side with dense sequences that say what it must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.model.served import KVSpec
from mstar_rt.nn.attention import AttentionBackend, AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from tests.nn.dense_reference import DenseSequence, TokenSource

Part = tuple[int, int, StepKind] | tuple[int, int, StepKind, int]
"""(sequence, num_new, kind) of a batch, or with block_tokens."""

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

    def step(self, batch: Sequence[Part], unread: Sequence[int] = (), max_blocks: int = 10_000) -> None:
        """Run the parts of a batch through both, in plans of at most `max_blocks` blocks, and compare every layer.

        `unread` are indices of blocks whose output is not asked for.
        """
        steps = [AttentionStep(self.tables[part[0]], *part[1:]) for part in batch]
        stored = [self.dense[part[0]].length for part in batch]
        sizes = [step.num_new for step in steps]
        block_sizes = [step.block_tokens or step.num_new for step in steps for _ in range(_num_blocks(step))]
        plan = self.backend.plan(steps)
        assert list(plan.positions) == [
            past + done
            for past, step in zip(stored, steps, strict=True)
            for done in range(0, step.num_new, step.block_tokens or step.num_new)
        ]
        given, expected = [], []
        for layer in range(self.pool.spec.num_layers):
            q, k, v = self.tokens.draw(sum(sizes))
            parts = zip(steps, batch, stored, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
            given.append([x.split(block_sizes) for x in (q, k, v)])
            rows = [
                self.dense[part[0]].step(layer, step.kind, past, *qkv, step.block_tokens)
                for step, part, past, *qkv in parts
            ]
            expected.append(torch.cat(rows).split(block_sizes))
        first = 0
        for part_of_plan in plan.parts(max_blocks):
            indices = range(first, first + len(part_of_plan.positions))
            self._compare(part_of_plan, given, expected, indices, [index for index in indices if index not in unread])
            first = indices.stop
        assert first == len(block_sizes)
        assert [table.length for table in self.tables] == [dense.length for dense in self.dense]

    def _compare(
        self,
        plan: AttentionPlan,
        given: Sequence[Sequence[Sequence[torch.Tensor]]],
        expected: Sequence[Sequence[torch.Tensor]],
        indices: range,
        read: Sequence[int],
    ) -> None:
        """Every layer of one plan over the blocks `indices`, of which `read` are asked for."""
        for layer, ((q, k, v), wanted) in enumerate(zip(given, expected, strict=True)):
            keys, values = (torch.cat([x[i] for i in indices]).to(self.pool.device) for x in (k, v))
            if not read:
                plan.store(layer, keys, values)
                continue
            queries = torch.cat([q[i] for i in read])
            within = None if len(read) == len(indices) else [i - indices.start for i in read]
            got = plan.run(layer, queries.to(self.pool.device), keys, values, within).cpu()
            assert got.shape == queries.shape
            assert got.dtype is queries.dtype
            dense = torch.cat([wanted[i] for i in read])
            torch.testing.assert_close(got.double(), dense, rtol=0, atol=TOLERANCE[got.dtype])

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
                batch, unread, max_blocks = details
                self.step(self._one_append_each(batch), unread, max_blocks)

    def _one_append_each(self, batch: Sequence[tuple[int, int, StepKind, int]]) -> list[Part]:
        kept: list[Part] = []
        appended: set[int] = set()
        for number, num_new, kind, num_blocks in batch:
            index = number % len(self.tables)
            if kind.appends and index in appended:
                continue
            if kind is StepKind.BLOCK_APPEND and num_blocks:
                kept.append((index, num_new * num_blocks, kind, num_new))
            else:
                kept.append((index, num_new, kind))
            appended |= {index} if kind.appends else set()
        return kept


def _num_blocks(step: AttentionStep) -> int:
    return step.num_new // (step.block_tokens or step.num_new)


def histories() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """What may happen to the sequences of a cache, with batches of any mix of kinds, sizes and numbers of blocks."""
    step = st.tuples(st.integers(0, 7), st.integers(1, 9), st.sampled_from(list(StepKind)), st.integers(0, 4))
    batch = st.lists(step, min_size=1, max_size=6)
    change = st.one_of(
        st.just(("create",)),
        st.tuples(st.just("fork"), st.integers(0, 7)),
        st.tuples(st.just("truncate"), st.integers(0, 7), st.floats(0, 1)),
        st.tuples(st.just("step"), batch, st.sets(st.integers(0, 9), max_size=6), st.sampled_from([1, 2, 5, 100])),
    )
    return st.lists(change, min_size=4, max_size=14)
