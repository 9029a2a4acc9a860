"""The blocks of `vit` in planned steps against a paged cache.

A step of one sequence is a few milliseconds of arithmetic in some hundred operations, whose keys and values push all
else out of the processor's caches, so what happens between the operations counts: a block is prepared once, and then
goes through as few Python calls as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.linear import Linear, PreparedLinear
from mstar_rt.nn.rope3d import Rotation, rotate
from mstar_rt.nn.vit import Block

Norm = Callable[[torch.Tensor], torch.Tensor]


class StepBlock:
    """A block in steps of [B, N, D]: B blocks of N tokens each, in the order of the plan. `prepared`: for inference,
    without gradients."""

    def __init__(self, block: Block, prepared: bool) -> None:
        layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
        self._num_heads = block.attn.num_heads
        self._norm1, self._norm2 = step_norm(block.norm1, prepared), step_norm(block.norm2, prepared)
        self._qkv, self._proj, self._fc1, self._fc2 = (step_linear(layer, prepared) for layer in layers)
        self._of_query, self._of_cache = slice(block.attn.qkv.in_features), slice(block.attn.qkv.in_features, None)

    def __call__(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        plan: AttentionPlan,
        layer: int,
        first_token: int = 0,
        blocks: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """x + attention(norm(x)), then x + mlp(norm(x)), of which only the tokens from `first_token` on, of some or all
        blocks, are read: of the others only what the cache keeps is computed.

        Args:    rotation: tables over (token, query or key, head), of all blocks or of each.
        Returns: [read blocks, N - first_token, D].
        """
        if blocks is None or len(blocks) == len(x):
            blocks = None
            projected = self._qkv(self._norm1(x)).view(*x.shape[:-1], 3, self._num_heads, -1)
            q, k = rotate(projected.narrow(-3, 0, 2), rotation).flatten(0, 1).unbind(-3)
            v = projected.flatten(0, 1).select(-3, 2)
        else:
            projected = self._qkv(self._norm1(x), columns=self._of_cache).view(*x.shape[:-1], 2, self._num_heads, -1)
            k = rotate(projected.narrow(-3, 0, 1), rotation).flatten(0, 2)
            v = projected.flatten(0, 1).select(-3, 1)
            if not len(blocks):
                plan.store(layer, k, v)
                return x[:0, first_token:]
            x = x[list(blocks)]
            projected = self._qkv(self._norm1(x), columns=self._of_query).view(*x.shape[:-1], 1, self._num_heads, -1)
            q = rotate(projected, _of_blocks(rotation, blocks)).flatten(0, 2)
        attended = plan.run(layer, q, k, v, blocks).reshape(x.shape)
        if first_token:
            attended, x = attended[:, first_token:], x[:, first_token:]
        x = self._proj(attended, residual=x)
        return self._fc2(self._fc1(self._norm2(x), activation="gelu"), residual=x)


Layers = TypeVar("Layers")


class StepLayers(Generic[Layers]):
    """What `make(prepared)` makes of a network's layers, which may be moved or loaded in between, as a whole: `of` is
    one of them."""

    def __init__(self, of: Linear, make: Callable[[bool], Layers]) -> None:
        self._of = of
        self._make = make
        self._address = -1
        self._made: Layers | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies are not prepared: their weights are others."""
        return {**self.__dict__, "_address": -1, "_made": None}

    def now(self) -> Layers:
        """Made anew where the weights are others than before; with gradients nothing is prepared."""
        if torch.is_grad_enabled():
            return self._make(False)
        address = self._of.weight.data_ptr()
        if self._made is None or address != self._address:
            self._address, self._made = address, self._make(True)
        return self._made


def step_linear(layer: Linear, prepared: bool) -> Linear | PreparedLinear:
    """The layer itself, or for inference."""
    return PreparedLinear(layer) if prepared else layer


def step_norm(norm: nn.LayerNorm, prepared: bool) -> Norm:
    """The norm itself, or for inference."""
    if not prepared:
        return norm
    shape, eps = norm.normalized_shape, norm.eps
    weight, bias = norm.weight.detach(), norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _of_blocks(rotation: Rotation, blocks: Sequence[int]) -> Rotation:
    """Tables of some blocks, where each has its own; those that all share stay."""
    return rotation if rotation.turn.dim() == 4 else Rotation(*(table[list(blocks)] for table in rotation))
