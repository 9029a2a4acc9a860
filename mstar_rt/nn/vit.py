"""Pre-norm vision-transformer blocks whose attention is handed in by the caller.

The same block runs a dense training forward, an encoder, and one step against a paged cache: only `attend` differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.linear import ALL, Linear
from mstar_rt.nn.rope3d import Rotation, rotate

BLOCK_NORM_EPS = 1e-6

ROWS_AT_ONCE = {"cpu": 2112, "cuda": 32768}
"""Tokens of one pass through all layers. On a CPU half as many are as fast, twice as many up to 8 % slower; the figure
for GPUs bounds memory and is not measured."""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(q, k, v), each [B, N, heads, head_dim] -> [B, N, heads, head_dim]; q and k are already rotated."""


def dense_attention(mask: torch.Tensor | None = None) -> Attend:
    """Attention of every token to every token, less what `mask` (additive, [N, N]) takes away."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return attend


def paged_attention(plan: AttentionPlan, layer: int) -> Attend:
    """Attention of one layer of a planned step: B sequences, each with one block of N tokens."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plan.run(layer, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view(q.shape)

    return attend


class SelfAttention(nn.Module):
    """Multi-head attention with one fused query-key-value product."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = Linear(dim, 3 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: torch.Tensor, norm: nn.LayerNorm, rotation: Rotation, attend: Attend) -> torch.Tensor:
        """x + attention(norm(x)); x [B, N, D], rotation tables over (token, query or key, head)."""
        q, k, v = self.project(x, norm, rotation, 0, 3)
        return self.proj(attend(q, k, v).flatten(-2), residual=x)

    def project(
        self, x: torch.Tensor, norm: nn.LayerNorm, rotation: Rotation, first: int, last: int
    ) -> tuple[torch.Tensor, ...]:
        """Those of (query, key, value) from `first` to before `last`, each [B, N, heads, head_dim], rotated."""
        dim = self.qkv.in_features
        columns = ALL if last - first == 3 else slice(first * dim, last * dim)
        projected = self.qkv(norm(x), columns=columns)
        parts = projected.view(*x.shape[:-1], last - first, self.num_heads, self.head_dim)
        turned = rotate(parts[..., : 2 - first, :, :], rotation).unbind(-3)
        return turned if last < 3 else (*turned, parts[..., 2 - first, :, :])


class Mlp(nn.Module):
    """Two linear layers around an exact (erf) GELU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """x + mlp(norm(x))."""
        return self.fc2(self.fc1(norm(x), gelu=True), residual=x)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=BLOCK_NORM_EPS)
        self.attn = SelfAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=BLOCK_NORM_EPS)
        self.mlp = Mlp(dim, mlp_dim)

    def forward(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        return self.mlp(self.attn(x, self.norm1, rotation, attend), self.norm2)

    def read(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        plan: AttentionPlan,
        layer: int,
        first_token: int = 0,
        blocks: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """`forward` in a planned step of which only the tokens from `first_token` on, of some or all blocks, are read.

        Of the others only what the cache keeps is computed. Returns: [read blocks, N - first_token, D].
        """
        if blocks is None or len(blocks) == len(x):
            blocks = None
            q, k, v = self.attn.project(x, self.norm1, rotation, 0, 3)
        else:
            k, v = self.attn.project(x, self.norm1, rotation, 1, 3)
            if not len(blocks):
                plan.store(layer, k.flatten(0, 1), v.flatten(0, 1))
                return x[:0, first_token:]
            x = x[list(blocks)]
            (q,) = self.attn.project(x, self.norm1, _of_blocks(rotation, blocks), 0, 1)
        attended = plan.run(layer, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), blocks)
        attended = attended.reshape(x.shape)
        return self.mlp(self.attn.proj(attended[:, first_token:], residual=x[:, first_token:]), self.norm2)


def _of_blocks(rotation: Rotation, blocks: Sequence[int]) -> Rotation:
    """Tables of some blocks, where each has its own; those that all share stay."""
    return rotation if rotation.turn.dim() == 4 else Rotation(*(table[list(blocks)] for table in rotation))


def items_at_once(tokens_per_item: int, device: torch.device) -> int:
    """How many frames, sequences or clips go through the layers together; the others wait, or memory would grow."""
    return max(1, ROWS_AT_ONCE.get(device.type, ROWS_AT_ONCE["cpu"]) // tokens_per_item)


def over_heads(rotation: Rotation) -> Rotation:
    """Tables [..., N, channels] -> [..., N, 1, 1, channels], to broadcast over (query or key, head)."""
    return Rotation(*(table[..., None, None, :] for table in rotation))


def initialise(module: nn.Module, blocks: nn.ModuleList) -> None:
    """Truncated normal weights (std 0.02), zero biases, and residual branches scaled down with depth."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)
    with torch.no_grad():
        for depth, block in enumerate(blocks, start=1):
            assert isinstance(block, Block)
            block.attn.proj.weight.div_(math.sqrt(2.0 * depth))
            block.mlp.fc2.weight.div_(math.sqrt(2.0 * depth))
