"""The pieces of Gemma-style decoders, against their definitions."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional

from mstar_rt.cache.pool import KVPool
from mstar_rt.model.served import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.decoder import DecoderLayer, KeyValueLayer, PreparedLayers, paged_attention
from mstar_rt.nn.flow import embed_time, euler_times
from mstar_rt.nn.rms_norm import AdaptiveRMSNorm, Modulation, RMSNorm
from mstar_rt.nn.rope import Rotary, rotate_halves
from tests.nn.dense_reference import dense_attention

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 24, 6, 2, 8


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def random_layer(condition_dim: int | None = None) -> DecoderLayer:
    layer = DecoderLayer(WIDTH, HEADS, KV_HEADS, HEAD_DIM, mlp_dim=40, condition_dim=condition_dim)
    return layer.requires_grad_(False)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(dtype: torch.dtype) -> None:
    x, condition = (torch.randn(2, 5, WIDTH) * 7).to(dtype), torch.randn(2, 5, 10).to(dtype)
    plain, adaptive = RMSNorm(WIDTH), AdaptiveRMSNorm(WIDTH, 10)
    torch.nn.init.normal_(plain.weight)
    plain, adaptive = plain.to(dtype), adaptive.to(dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 3e-2}
    got = plain(x)
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), by_hand(x) * (1 + plain.weight.double()), **tolerance)

    scale, shift, gate = adaptive.dense(condition).double().chunk(3, dim=-1)
    modulation = Modulation(*adaptive.modulate(condition).unbind(-2))
    torch.testing.assert_close(adaptive(x, modulation).double(), by_hand(x) * (1 + scale) + shift, **tolerance)
    torch.testing.assert_close(modulation.gate.double(), gate)


def test_a_norm_takes_tokens_of_any_size() -> None:
    for size in (1e-12, 1e12):
        torch.testing.assert_close(RMSNorm(4)(torch.full((4,), size)), torch.full((4,), min(1.0, size * 1e3)))


def test_rotation_is_that_of_halves_but_for_the_order_of_channels() -> None:
    heads, positions = torch.randn(5, 3, HEAD_DIM), torch.tensor([0, 7, 2, 40, 3])
    half = HEAD_DIM // 2
    angles = positions[:, None, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    turned = torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
    got = rotate_halves(heads, Rotary(HEAD_DIM).at(positions, 40))
    torch.testing.assert_close(got.unflatten(-1, (half, 2)).transpose(-1, -2).flatten(-2), turned, rtol=0, atol=2e-6)
    assert torch.equal(got[0].unflatten(-1, (half, 2)).transpose(-1, -2).flatten(-2), heads[0])


def test_rotary_tables_grow_and_serve_gradients_wherever_they_were_made() -> None:
    rotary = Rotary(HEAD_DIM)
    with torch.inference_mode():
        early = rotary.at(torch.tensor([1]), 1)
    late = rotary.at(torch.tensor([1, 900]), 900)
    torch.testing.assert_close(late[:1], early.clone())
    heads = torch.randn(1, 2, HEAD_DIM, requires_grad=True)
    rotate_halves(heads, rotary.at(torch.tensor([1]), 1)).square().sum().backward()
    torch.testing.assert_close(heads.grad, 2 * heads.detach())


def pool_of(num_layers: int) -> KVPool:
    return KVPool(KVSpec(num_layers, KV_HEADS, HEAD_DIM, page_size=4, max_sequence_tokens=64), num_pages=32)


@pytest.mark.parametrize("condition_dim", [None, 10])
@torch.inference_mode()
def test_a_layer_is_causal_if_its_attention_is(condition_dim: int | None) -> None:
    """One token at a time against the cache, as text is generated, equals all at once."""
    layer, x, rotary = random_layer(condition_dim), torch.randn(7, WIDTH), Rotary(HEAD_DIM)
    norms: list[Modulation | None] = [None, None]
    if condition_dim is not None:
        norms = [Modulation(*torch.randn(3, WIDTH)) for _ in range(2)]
    turn = rotary.at(torch.arange(7), 6)
    expected = layer(x, turn, lambda q, k, v: attend(q[None], k[None], v[None], causal=True)[0], *norms)

    pool = pool_of(1)
    table, backend = pool.new_table(), CpuAttention(pool)
    for position in range(7):
        plan = backend.plan([AttentionStep(table, 1, StepKind.CAUSAL_APPEND)])
        got = layer(x[position : position + 1], turn[position : position + 1], paged_attention(plan, 0), *norms)
        torch.testing.assert_close(got[0], expected[position], rtol=0, atol=1e-5)


@torch.inference_mode()
def test_keys_and_values_alone_are_those_of_the_whole_layer() -> None:
    layer, x, turn = random_layer(), torch.randn(2, 5, WIDTH), Rotary(HEAD_DIM).at(torch.arange(5).expand(2, 5), 4)
    stored = []
    layer(x, turn, lambda q, k, v: (stored.append((k, v)), q)[1])
    alone = KeyValueLayer(WIDTH, KV_HEADS, HEAD_DIM)
    alone.input_layernorm.weight.copy_(layer.input_layernorm.weight)
    alone.self_attn.kv_proj.weight.copy_(layer.self_attn.qkv_proj.weight[HEADS * HEAD_DIM :])
    for got in (layer.keys_values(x, turn), alone(x, turn)):
        torch.testing.assert_close(got, stored[0], rtol=0, atol=1e-6)


@torch.inference_mode()
def test_a_layer_is_what_it_is_written_to_be() -> None:
    """Both branches, plain and under a condition, from the definition."""
    x, turn = torch.randn(3, WIDTH), Rotary(HEAD_DIM).at(torch.arange(3), 2)
    for condition_dim in (None, 10):
        layer = random_layer(condition_dim)
        norms = [None, None] if condition_dim is None else [Modulation(*torch.randn(3, WIDTH)) for _ in range(2)]
        gates = [1.0 if norm is None else norm.gate for norm in norms]
        got = layer(x, turn, lambda q, k, v: q * 2, *norms)
        q = layer.self_attn.qkv_proj(layer.input_layernorm(x, norms[0]))[:, : HEADS * HEAD_DIM].unflatten(
            1, (HEADS, -1)
        )
        attended = 2 * rotate_halves(q, turn).flatten(1)
        y = x + gates[0] * functional.linear(attended, layer.self_attn.o_proj.weight)
        z, mlp = layer.post_attention_layernorm(y, norms[1]), layer.mlp
        opened = functional.gelu(functional.linear(z, mlp.gate_proj.weight), approximate="tanh")
        hidden = opened * functional.linear(z, mlp.up_proj.weight)
        expected = y + gates[1] * functional.linear(hidden, mlp.down_proj.weight)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_prepared_layers_follow_their_weights() -> None:
    """Prepared for inference, they see a training step in place, other weights, and a copy's own."""
    layers = torch.nn.ModuleList([random_layer()])
    prepared, x, turn = PreparedLayers(layers), torch.randn(3, WIDTH), Rotary(HEAD_DIM).at(torch.arange(3), 2)
    layer = layers[0]

    def check(prepared: PreparedLayers, layer: DecoderLayer) -> None:
        with torch.no_grad():
            (now,) = prepared.now()
            got = now.decode(x, turn, lambda q, k, v: q)
            torch.testing.assert_close(got, layer(x, turn, lambda q, k, v: q), rtol=0, atol=1e-6)

    check(prepared, layer)
    for parameter in layer.parameters():
        parameter.mul_(1.5).add_(0.01)
    check(prepared, layer)
    layers_copy, prepared_copy = copy.deepcopy((layers, prepared))
    for parameter in layers_copy.parameters():
        parameter.mul_(0.5)
    check(prepared_copy, layers_copy[0])
    check(prepared, layer)
    layer.load_state_dict(random_layer().state_dict(), assign=True)
    check(prepared, layer)


def test_padding_is_hidden_from_dense_attention() -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 3e-2)):
        q = torch.randn(2, 9, HEADS, HEAD_DIM).to(dtype)
        k, v = torch.randn(2, 2, 300, KV_HEADS, HEAD_DIM).to(dtype)
        visible = torch.rand(2, 300) < 0.5
        hidden = torch.zeros(2, 300, dtype=dtype).masked_fill_(~visible, -math.inf)
        for row in range(2):
            expected = dense_attention(q[row], k[row], v[row], visible[row].expand(9, 300))
            got = attend(q, k, v, causal=False, hidden=hidden)[row]
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)


def test_the_time_of_a_flow_is_embedded_in_float64() -> None:
    times = torch.tensor([1.0, 0.7, 0.0])
    got = embed_time(times, 6, 4e-3, 4.0)
    for index, time in enumerate(times.tolist()):
        angles = [2 * math.pi * time / period for period in (4e-3, math.sqrt(4e-3 * 4.0), 4.0)]
        expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        torch.testing.assert_close(got[index], torch.tensor(expected), rtol=0, atol=1e-6)
    assert embed_time(times[:, None].expand(3, 4), 6, 4e-3, 4.0).shape == (3, 4, 6)


def test_a_flow_ends_at_the_data() -> None:
    assert euler_times(4).tolist() == [1.0, 0.75, 0.5, 0.25]
    noise, data = torch.randn(2, 3)
    x = noise
    for _ in euler_times(10):
        x = x - (noise - data) / 10
    torch.testing.assert_close(x, data, rtol=0, atol=1e-6)
