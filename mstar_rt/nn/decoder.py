"""Decoder layers of the Gemma and Llama families, whose attention is handed in by the caller.

The same layer runs dense and paged, causally or over blocks, plain or modulated by a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.linear import Activation, Linear, PreparedLinear
from mstar_rt.nn.packed_linear import PackedLinear
from mstar_rt.nn.rms_norm import GEMMA, AdaptiveRMSNorm, Modulation, NormKind, RMSNorm, normed
from mstar_rt.nn.rope import rotate_halves

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(q [..., heads, head_dim], k and v [..., kv heads, head_dim]) -> the like of q; q and k are already rotated."""


def paged_attention(plan: AttentionPlan, layer: int) -> Attend:
    """Attention of one layer of a planned step, over tokens in however many leading dimensions."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plan.run(layer, q.flatten(0, -3), k.flatten(0, -3), v.flatten(0, -3)).view(q.shape)

    return attend


class GroupedQueryAttention(nn.Module):
    """The weights of attention with several query heads to a key head; one product for queries, keys and values."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.qkv_proj = Linear(width, (num_heads + 2 * num_kv_heads) * head_dim, bias=False)
        self.o_proj = Linear(num_heads * head_dim, width, bias=False)


class GatedMlp(nn.Module):
    """The weights of down(activation(gate x) * up x).

    Two products that end in the activation and in the multiplication take two thirds of the time of a fused one.
    """

    def __init__(self, width: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden_dim, bias=False)
        self.up_proj = Linear(width, hidden_dim, bias=False)
        self.down_proj = Linear(hidden_dim, width, bias=False)


Product = Linear | PreparedLinear | PackedLinear


class LayerParts(NamedTuple):
    """What a layer computes with. Weights of norms are None where norms are adaptive."""

    norm_before: torch.Tensor | None
    qkv: Product
    output: Product
    norm_between: torch.Tensor | None
    gate: Product
    up: Product
    down: Product
    num_kv_heads: int
    head_dim: int
    norm_kind: NormKind = GEMMA
    activation: Activation = "gelu_tanh"

    def decode(
        self,
        x: torch.Tensor,
        turn: torch.Tensor,
        attend: Attend,
        before: Modulation | None = None,
        between: Modulation | None = None,
    ) -> torch.Tensor:
        """x + attention(norm(x)), then x + mlp(norm(x)); under a condition norms are modulated and branches gated.

        Args:  x [..., W]. turn: rotary table of the tokens' positions. before, between: of the two norms.
        """
        heads = self.qkv(normed(x, self.norm_before, before, self.norm_kind)).view(*x.shape[:-1], -1, self.head_dim)
        num_turned = heads.shape[-2] - self.num_kv_heads
        turned = rotate_halves(heads[..., :num_turned, :], turn)
        q, k = turned.split((num_turned - self.num_kv_heads, self.num_kv_heads), dim=-2)
        attended = attend(q, k, heads[..., num_turned:, :]).flatten(-2)
        if before is None or between is None:
            x = self.output(attended, residual=x)
            return self.down(self._hidden(normed(x, self.norm_between, None, self.norm_kind)), residual=x)
        x = torch.addcmul(x, self.output(attended), before.gate.to(x.dtype))
        return torch.addcmul(x, self.down(self._hidden(normed(x, None, between))), between.gate.to(x.dtype))

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x, factor=self.gate(x, activation=self.activation))


class DecoderLayer(nn.Module):
    """Under a condition of `condition_dim` numbers its norms are adaptive, else they have weights of `norm_kind`."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mlp_dim: int,
        condition_dim: int | None = None,
        norm_kind: NormKind = GEMMA,
        activation: Activation = "gelu_tanh",
    ) -> None:
        super().__init__()
        self.norm_kind = norm_kind
        self.activation: Activation = activation
        self.input_layernorm = norm_of(width, condition_dim, norm_kind)
        self.self_attn = GroupedQueryAttention(width, num_heads, num_kv_heads, head_dim)
        self.post_attention_layernorm = norm_of(width, condition_dim, norm_kind)
        self.mlp = GatedMlp(width, mlp_dim)

    def forward(
        self,
        x: torch.Tensor,
        turn: torch.Tensor,
        attend: Attend,
        before: Modulation | None = None,
        between: Modulation | None = None,
    ) -> torch.Tensor:
        """See LayerParts.decode."""
        return self.parts(is_prepared=False).decode(x, turn, attend, before, between)

    def keys_values(self, x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer, of plain norms, would store of x [..., W], at the share of its cost."""
        attention = self.self_attn
        columns = slice(attention.o_proj.in_features, attention.qkv_proj.out_features)
        heads = attention.qkv_proj(self.input_layernorm(x), columns=columns).unflatten(-1, (-1, attention.head_dim))
        k, v = heads.chunk(2, dim=-2)
        return rotate_halves(k, turn), v

    def parts(self, is_prepared: bool) -> LayerParts:
        """`is_prepared`: for inference, with less to do at each call."""
        return self._parts(PreparedLinear if is_prepared else _as_it_is, is_prepared)

    def packed(self) -> LayerParts:
        """For inference alone, with copies of the weights: see PackedLinear."""
        return self._parts(PackedLinear.of, is_prepared=True)

    def _parts(self, prepare: Callable[[Linear], Product], is_prepared: bool) -> LayerParts:
        attention, mlp = self.self_attn, self.mlp
        return LayerParts(
            _weight_of(self.input_layernorm, is_prepared),
            prepare(attention.qkv_proj),
            prepare(attention.o_proj),
            _weight_of(self.post_attention_layernorm, is_prepared),
            prepare(mlp.gate_proj),
            prepare(mlp.up_proj),
            prepare(mlp.down_proj),
            attention.num_kv_heads,
            attention.head_dim,
            self.norm_kind,
            self.activation,
        )


class PreparedLayers:
    """The layers of a network for inference, which may be moved or loaded in between, as a whole.

    A step over a few dozen tokens is some hundred short operations: what happens between them is a quarter of it.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._sources = [layer for layer in layers if isinstance(layer, DecoderLayer)]
        self._address = -1
        self._prepared: list[LayerParts] = []

    def now(self) -> list[LayerParts]:
        """The layers as they are where gradients flow, else prepared: anew where the first one's weights are others."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not self._sources:
            return [layer.parts(is_prepared=False) for layer in self._sources]
        address = self._sources[0].self_attn.qkv_proj.weight.data_ptr()
        if address != self._address:
            self._address, self._prepared = address, [layer.parts(is_prepared=True) for layer in self._sources]
        return self._prepared


class KeysValues(nn.Module):
    """The weights of keys and values alone."""

    def __init__(self, width: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.kv_proj = Linear(width, 2 * num_kv_heads * head_dim, bias=False)


class KeyValueLayer(nn.Module):
    """What a decoder's last layer needs where nothing but its keys and values is read."""

    def __init__(self, width: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = KeysValues(width, num_kv_heads, head_dim)
        self.head_dim = head_dim

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., W] -> k, v [..., kv heads, head_dim], k rotated."""
        heads = self.self_attn.kv_proj(self.input_layernorm(x)).unflatten(-1, (-1, self.head_dim))
        k, v = heads.chunk(2, dim=-2)
        return rotate_halves(k, turn), v


def norm_of(width: int, condition_dim: int | None, kind: NormKind = GEMMA) -> RMSNorm | AdaptiveRMSNorm:
    """Adaptive where there is a condition."""
    return RMSNorm(width, kind) if condition_dim is None else AdaptiveRMSNorm(width, condition_dim)


def _weight_of(norm: RMSNorm | AdaptiveRMSNorm, is_prepared: bool) -> torch.Tensor | None:
    if isinstance(norm, AdaptiveRMSNorm):
        return None
    return norm.weight.detach() if is_prepared else norm.weight


def _as_it_is(layer: Linear) -> Linear:
    return layer
