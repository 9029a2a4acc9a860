"""A flow's steps lay out their attention once, and what has changed since is never missed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.model import KVSpec
from mstar_rt.nn import attention_cpu
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention

SPEC = KVSpec(num_layers=1, num_kv_heads=1, head_dim=4, page_size=4, max_sequence_tokens=32)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were laid out, as a list that grows."""
    counted: list[int] = []
    groups = attention_cpu._groups

    def counting(*args: Any) -> Any:
        counted.append(1)
        return groups(*args)

    monkeypatch.setattr(attention_cpu, "_groups", counting)
    return counted


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 1, 4, generator=torch.Generator().manual_seed(seed))


def append(backend: CpuAttention, table: PageTable, count: int, seed: int) -> None:
    x = tokens(count, seed)
    backend.plan([AttentionStep(table, count, StepKind.BLOCK_APPEND)]).run(0, x, x, x)


def look(backend: CpuAttention, *tables: PageTable, num_new: int = 3) -> torch.Tensor:
    x = tokens(num_new * len(tables), 99)
    return backend.plan([AttentionStep(table, num_new, StepKind.TRANSIENT_BLOCK) for table in tables]).run(0, x, x, x)


def test_equal_steps_are_laid_out_once_and_others_anew(layouts: list[int]) -> None:
    pool = KVPool(SPEC, 16)
    backend, fresh = CpuAttention(pool), CpuAttention(pool)
    one, other = pool.new_table(), pool.new_table()
    append(fresh, one, 6, 1)
    append(fresh, other, 9, 2)
    layouts.clear()
    first = look(backend, one, other)
    assert torch.equal(look(backend, one, other), first)
    assert len(layouts) == 1
    for tables, num_new in (((other, one), 3), ((one,), 3), ((one,), 2)):
        got = look(backend, *tables, num_new=num_new)
        torch.testing.assert_close(got, look(CpuAttention(pool), *tables, num_new=num_new))
    append(fresh, one, 2, 3)
    torch.testing.assert_close(look(backend, one), look(CpuAttention(pool), one))


def test_a_sequence_in_the_pages_of_another_is_seen_as_it_is() -> None:
    pool = KVPool(SPEC, 16)
    backend = CpuAttention(pool)
    table = pool.new_table()
    append(backend, table, 6, 1)
    before = look(backend, table)
    table.release()
    table = pool.new_table()
    append(backend, table, 6, 2)
    after = look(backend, table)
    torch.testing.assert_close(after, look(CpuAttention(pool), table))
    assert (after - before).abs().max() > 1e-3


def test_what_a_step_of_inference_laid_out_can_be_differentiated() -> None:
    """Sequences out of order and in scattered pages, which are reached by indices."""
    pool = KVPool(SPEC, 16)
    backend = CpuAttention(pool)
    tables = [pool.new_table() for _ in range(3)]
    for _ in range(2):
        for table, count in zip(tables, (4, 3, 4), strict=True):
            append(backend, table, count, 1)
    with torch.inference_mode():
        plain = look(backend, *tables)
    x = tokens(9, 99).requires_grad_()
    out = backend.plan([AttentionStep(table, 3, StepKind.TRANSIENT_BLOCK) for table in tables]).run(0, x, x, x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out.detach(), plain.clone())
    assert gradient.abs().max() > 0
