"""One more token for sequences of all lengths: the same as one by one, to the last bit, wherever their pages lie."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mstar_rt.cache import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention

LAYERS, KV_HEADS, HEADS, HEAD_DIM = 2, 2, 6, 16


def grown(pool: KVPool, lengths: list[int], in_turns: bool) -> list[PageTable]:
    """Sequences of these lengths with noise in them. `in_turns`: their pages lie between one another."""
    tables = [pool.new_table() for _ in lengths]
    if in_turns:
        for step in range(max(lengths)):
            for table, length in zip(tables, lengths, strict=True):
                table.append(int(step < length))
    else:
        for table, length in zip(tables, lengths, strict=True):
            table.append(length)
    return tables


def stored(pool: KVPool, table: PageTable, layer: int) -> torch.Tensor:
    """[2, length, kv heads, head_dim]."""
    return pool.kv[layer][:, table.pages].flatten(1, 2)[:, : table.length]


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_batch_is_its_sequences(in_turns: bool, dtype: torch.dtype) -> None:
    generator, order = torch.Generator().manual_seed(1), random.Random(1)
    lengths = [5, 0, 33, 5, 16, 70, 5, 15]
    pools = [
        KVPool(KVSpec(LAYERS, KV_HEADS, HEAD_DIM, 8, 96), num_pages=64, dtype=dtype, extent_pages=2) for _ in range(2)
    ]
    pools[0].kv.normal_(generator=generator)
    pools[1].kv.copy_(pools[0].kv)
    (together, alone), backends = ([grown(pool, lengths, in_turns) for pool in pools]), [*map(CpuAttention, pools)]
    for _ in range(4):
        chosen = order.sample(range(len(lengths)), 6)
        q, k, v = (
            torch.randn(LAYERS, len(chosen), heads, HEAD_DIM, generator=generator).to(dtype)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        plan = backends[0].plan([AttentionStep(together[index], 1, StepKind.CAUSAL_APPEND) for index in chosen])
        got = [plan.run(layer, q[layer], k[layer], v[layer]) for layer in range(LAYERS)]
        for row, index in enumerate(chosen):
            plan = backends[1].plan([AttentionStep(alone[index], 1, StepKind.CAUSAL_APPEND)])
            for layer in range(LAYERS):
                own = plan.run(layer, *(x[layer, row : row + 1] for x in (q, k, v)))
                assert torch.equal(own[0], got[layer][row])
                keys, values = (
                    stored(pools[1], alone[index], layer).repeat_interleave(HEADS // KV_HEADS, 2).transpose(1, 2)
                )
                expected = scaled_dot_product_attention(q[layer, row][:, None], keys, values)[:, 0]
                torch.testing.assert_close(own[0], expected, rtol=0, atol=1e-6 if dtype is torch.float32 else 2e-2)
                torch.testing.assert_close(
                    stored(pools[0], together[index], layer)[:, -1], torch.stack([k[layer, row], v[layer, row]])
                )
