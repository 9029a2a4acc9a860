"""Pre-norm vision-transformer blocks whose attention is handed in by the caller.

The same block runs a dense training forward and an encoder; one step against a paged cache is in `vit_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear
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
        return self.joined(x, attend(*self.projected(x, norm, rotation)))

    def projected(
        self, x: torch.Tensor, norm: nn.LayerNorm, rotation: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of tokens, [B, N, heads, head_dim] each."""
        projected = self.qkv(norm(x)).view(*x.shape[:-1], 3, self.num_heads, self.head_dim)
        q, k = rotate(projected[..., :2, :, :], rotation).unbind(-3)
        return q, k, projected[..., 2, :, :]

    def joined(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x plus what its tokens attend to, [B, N, heads, head_dim]."""
        return self.proj(attended.flatten(-2), residual=x)


class Mlp(nn.Module):
    """Two linear layers around an exact (erf) GELU."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """x + mlp(norm(x))."""
        return self.fc2(self.fc1(norm(x), activation="gelu"), residual=x)


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
