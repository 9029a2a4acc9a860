"""Attention over stored tokens has the gradients of dense attention over constants; what appends refuses them."""

from __future__ import annotations

import functools

import pytest
import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.model.served import KVSpec
from mstar_rt.nn import attention_flashinfer
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_flashinfer import FlashInferAttention
from tests.nn import flashinfer_standin
from tests.nn.dense_reference import dense_attention

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 4
BACKENDS = {"cpu": CpuAttention, "flashinfer": functools.partial(FlashInferAttention, library=flashinfer_standin)}


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_flashinfer, "WORKSPACE_BYTES", 16)


def new_pool(in_inference_mode: bool, extent_pages: int | None = None) -> KVPool:
    with torch.inference_mode(in_inference_mode):
        return KVPool(KVSpec(1, KV_HEADS, HEAD_DIM, 4, 64), 32, dtype=torch.float64, extent_pages=extent_pages)


def draw(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.randn(num_tokens, HEADS, HEAD_DIM, dtype=torch.float64)
    k, v = torch.randn(2, num_tokens, KV_HEADS, HEAD_DIM, dtype=torch.float64)
    return q, k, v


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_inference_mode", [False, True])
@pytest.mark.parametrize(("lengths", "extent_pages"), [([10], None), ([10, 10], 8), ([9, 9, 9], 1), ([5, 0, 11], None)])
def test_transient_blocks_have_the_gradients_of_dense_attention(
    backend: str, in_inference_mode: bool, lengths: list[int], extent_pages: int | None
) -> None:
    """Over pages in place, over gathered ones, over nothing, and over several of these in one batch."""
    torch.manual_seed(len(lengths))
    pool = new_pool(in_inference_mode, extent_pages)
    attention = BACKENDS[backend](pool)
    tables, stored, num_new = [pool.new_table() for _ in lengths], [draw(length)[1:] for length in lengths], 3
    with torch.inference_mode():
        for table, (k, v) in zip(tables, stored):
            if len(k):
                attention.plan([AttentionStep(table, len(k), StepKind.BLOCK_APPEND)]).store(0, k, v)
        plan = attention.plan([AttentionStep(table, num_new, StepKind.TRANSIENT_BLOCK) for table in tables])
        with torch.inference_mode(False), torch.enable_grad():
            given = [x.requires_grad_() for x in draw(num_new * len(lengths))]
            got = plan.run(0, *given)
            direction = torch.randn_like(got)
            gradients = torch.autograd.grad(got, given, direction)
    rows = [part.split(num_new) for part in given]
    dense = [
        dense_attention(q, torch.cat([old_k, k]), torch.cat([old_v, v]), torch.ones(num_new, len(old_k) + num_new) > 0)
        for q, k, v, (old_k, old_v) in zip(*rows, stored)
    ]
    expected = torch.autograd.grad(torch.cat(dense), given, direction)
    torch.testing.assert_close(got, torch.cat(dense), rtol=0, atol=1e-9)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_appends_refuses_gradients(backend: str) -> None:
    pool = new_pool(in_inference_mode=False)
    plan = BACKENDS[backend](pool).plan([AttentionStep(pool.new_table(), 2, StepKind.BLOCK_APPEND)])
    q, k, v = draw(2)
    with pytest.raises(AssertionError, match="no gradients"):
        plan.run(0, q, k.requires_grad_(), v)
