"""Pre-norm vision-transformer blocks whose attention is handed in by the caller.

The same block runs a dense training forward, an encoder, and one step against a paged cache: only `attend` differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.linear import Linear, linear_gelu
from mstar_rt.nn.rope3d import Rotation, rotate

BLOCK_NORM_EPS = 1e-6

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
        attended = plan.run(layer, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        return attended.unflatten(0, q.shape[:2])

    return attend


class SelfAttention(nn.Module):
    """Multi-head attention with one fused query-key-value product."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = Linear(dim, 3 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        """x [B, N, D]; rotation tables broadcast against [B, N, 2, heads, head_dim / 2]."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k = rotate(qkv[..., :2, :, :], rotation).unbind(-3)
        return self.proj(attend(q, k, qkv[..., 2, :, :]).flatten(-2))


class Mlp(nn.Module):
    """Two linear layers around an exact (erf) GELU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(linear_gelu(x, self.fc1.weight, self.fc1.bias))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=BLOCK_NORM_EPS)
        self.attn = SelfAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=BLOCK_NORM_EPS)
        self.mlp = Mlp(dim, mlp_dim)

    def forward(self, x: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rotation, attend)
        return x + self.mlp(self.norm2(x))


def over_heads(rotation: Rotation) -> Rotation:
    """Tables [..., N, pairs] -> [..., N, 1, 1, pairs], to broadcast over (query or key, head)."""
    return Rotation(rotation.turn[..., None, None, :], rotation.mirror[..., None, None, :])


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
