"""Linear layers, rotary positions and blocks against torch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from mstar_rt.nn.linear import Activation, Linear, PreparedLinear, pack
from mstar_rt.nn.rope3d import grid_rotation, rotate, section_size
from mstar_rt.nn.vit import Block, dense_attention, over_heads
from mstar_rt.nn.vit_steps import StepLayers, step_linear

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
BY_ONEDNN = pytest.mark.parametrize("num_rows", [7, 400])
"""Few rows are torch's own product, many are oneDNN's."""


@BY_ONEDNN
def test_linear_and_its_gradients_equal_torchs(num_rows: int) -> None:
    torch.manual_seed(0)
    layer, x = Linear(48, 32), torch.randn(5, num_rows, 48, requires_grad=True)
    grad = torch.randn(5, num_rows, 32)
    layer(x).backward(grad)
    got = [x.grad, layer.weight.grad, layer.bias.grad]
    parts = [tensor.detach().clone().requires_grad_() for tensor in (x, layer.weight, layer.bias)]
    expected = functional.linear(*parts)
    expected.backward(grad)
    torch.testing.assert_close(layer(x), expected)
    for ours, part in zip(got, parts, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, part.grad, rtol=1e-5, atol=1e-4)


def test_linear_takes_any_dtype_and_no_bias() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        layer, x = Linear(16, 8, bias=False).to(dtype), torch.randn(3, 16, dtype=dtype)
        torch.testing.assert_close(layer(x), functional.linear(x, layer.weight))


@BY_ONEDNN
@DTYPES
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("what", ["residual", "factor"])
def test_a_layer_with_what_follows_it(
    num_rows: int, dtype: torch.dtype, is_packed: bool, activation: Activation, what: str
) -> None:
    torch.manual_seed(0)
    layer = Linear(64, 96).to(dtype)
    x, other = torch.randn(3, num_rows, 64).to(dtype), torch.randn(3, num_rows + 1, 96).to(dtype)[:, 1:]
    if is_packed:
        pack(layer)
        assert layer._packed is not None
    out = functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    opened = {"none": out, "silu": functional.silu(out)}.get(activation, functional.gelu(out, approximate=approximate))
    expected = opened + other.double() if what == "residual" else opened * other.double()
    tolerance = {"rtol": 1e-6, "atol": 2e-6} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 2e-2}
    part = slice(16, 48)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, activation, **{what: other}).double(), expected, **tolerance)
        torch.testing.assert_close(
            layer(x, activation, columns=part, **{what: other[..., part]}).double(), expected[..., part], **tolerance
        )
    torch.testing.assert_close(layer(x, activation, **{what: other}).detach().double(), expected, **tolerance)


def test_inputs_that_are_slices() -> None:
    layer, x = Linear(64, 64), torch.randn(20, 30, 192)
    with torch.no_grad():
        torch.testing.assert_close(layer(x[:, 1:, 64:128]), layer(x[:, 1:, 64:128].contiguous()))
        assert layer(x[:0, :, :64]).shape == (0, 30, 64)


def test_new_weights_and_copies_do_not_see_the_packed_ones() -> None:
    layer, x = Linear(64, 64), torch.randn(200, 64)
    pack(layer)
    assert copy.deepcopy(layer)._packed is None
    layer.weight = torch.nn.Parameter(torch.zeros(64, 64))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.bias.expand(200, -1))


@BY_ONEDNN
@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu_tanh", "tanh")])
def test_fused_gelu_is_the_one_asked_for(num_rows: int, activation: Activation, approximate: str) -> None:
    layer, x = Linear(256, 32), torch.linspace(-6, 6, num_rows * 256).reshape(num_rows, 256)
    with torch.no_grad():
        fused = layer(x, activation=activation)
        plain = functional.gelu(functional.linear(x, layer.weight, layer.bias), approximate=approximate)
    torch.testing.assert_close(fused, plain, rtol=0, atol=5e-6)


def test_rotation_turns_no_token_at_the_origin_and_no_channel_that_is_left_over() -> None:
    tables = grid_rotation(2, 2, 2, 32, num_condition_tokens=2)
    heads = torch.randn(2, 6, 32)
    turned = rotate(heads, tables)
    torch.testing.assert_close(turned[0, :3], heads[0, :3])
    rest = 3 * section_size(32)
    torch.testing.assert_close(turned[..., rest:], heads[..., rest:])
    assert (turned[1, 0, :10] - heads[1, 0, :10]).abs().max() > 0.01
    torch.testing.assert_close(turned[1, 0, 10:], heads[1, 0, 10:])


def test_other_grids_span_the_trained_one() -> None:
    """An image of twice the size has half steps, so every second row stands where the trained rows stood."""
    small, large = grid_rotation(1, 2, 2, 32), grid_rotation(1, 4, 4, 32, trained_grid=(2, 2))
    every_second = large.turn.reshape(4, 4, 16)[::2, ::2].reshape(1, 4, 16)
    torch.testing.assert_close(every_second, small.turn)


def test_a_mask_hides_what_it_should() -> None:
    torch.manual_seed(1)
    block, x = Block(64, 2, 128), torch.randn(1, 4, 64)
    rotation = over_heads(grid_rotation(1, 2, 2, 32))
    rotation = type(rotation)(*(table[0] for table in rotation))
    mask = torch.zeros(4, 4)
    mask[:2, 2:] = float("-inf")
    with torch.no_grad():
        before = block(x, rotation, dense_attention(mask))
        x[:, 2:] += 1
        after = block(x, rotation, dense_attention(mask))
    torch.testing.assert_close(after[:, :2], before[:, :2])
    assert (after[:, 2:] - before[:, 2:]).abs().max() > 0.1


def test_prepared_layers_are_made_anew_when_weights_move_and_not_used_for_gradients() -> None:
    layer, made = Linear(8, 8), []

    def make(prepared: bool) -> Linear | PreparedLinear:
        made.append(prepared)
        return step_linear(layer, prepared)

    layers, x = StepLayers(layer, make), torch.randn(3, 8)
    with torch.inference_mode():
        first = layers.now()(x)
        assert layers.now() is layers.now()
        assert copy.deepcopy(layers).now() is not layers.now()
        layer.weight = torch.nn.Parameter(layer.weight + 1)
        assert torch.equal(layers.now()(x), layer(x))
        assert not torch.equal(layers.now()(x), first)
    assert layers.now() is layer
    assert made == [True, True, True, False]
