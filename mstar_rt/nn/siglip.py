"""The SigLIP vision tower: a plain vision transformer with learned positions and no pooling."""

from __future__ import annotations

import torch
from torch import nn

from mstar_rt.nn.linear import Linear, linear
from mstar_rt.nn.vit import dense_attention, items_at_once

NORM_EPS = 1e-6


class PatchEmbeddings(nn.Module):
    """Holds the published convolution, whose kernel and stride are equal, and runs it as one matrix product."""

    def __init__(self, dim: int, num_patches: int, patch_size: int) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)
        self.position_embedding = nn.Embedding(num_patches, dim)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N, 3, S, S] -> [N, P, D]."""
        size = self.patch_embedding.kernel_size[0]
        parts = pixels.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        patches = linear(parts, self.patch_embedding.weight.flatten(1), self.patch_embedding.bias)
        return patches + self.position_embedding.weight


class SelfAttention(nn.Module):
    """Multi-head attention with one fused query-key-value product, without rotary positions."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = Linear(dim, 3 * dim)
        self.out_proj = Linear(dim, dim)
        self._attend = dense_attention()

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x [N, P, D] -> residual + attention(x)."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        return self.out_proj(self._attend(q, k, v).flatten(-2), residual=residual)


class Mlp(nn.Module):
    """Two linear layers around a GELU that a tanh approximates."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x [N, P, D] -> residual + mlp(x)."""
        return self.fc2(self.fc1(x, activation="gelu_tanh"), residual=residual)


class SiglipLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.self_attn = SelfAttention(dim, num_heads)
        self.layer_norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = Mlp(dim, mlp_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, P, D] -> [N, P, D]."""
        x = self.self_attn(self.layer_norm1(x), residual=x)
        return self.mlp(self.layer_norm2(x), residual=x)


class SiglipEncoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, dim: int, depth: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipLayer(dim, num_heads, mlp_dim) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, P, D] -> [N, P, D]."""
        for layer in self.layers:
            x = layer(x)
        return x


class SiglipTower(nn.Module):
    """Parameter names are those of the published `vision_model`, with queries, keys and values in one."""

    def __init__(self, dim: int, depth: int, num_heads: int, mlp_dim: int, num_patches: int, patch_size: int) -> None:
        super().__init__()
        self.embeddings = PatchEmbeddings(dim, num_patches, patch_size)
        self.encoder = SiglipEncoder(dim, depth, num_heads, mlp_dim)
        self.post_layernorm = nn.LayerNorm(dim, eps=NORM_EPS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [N, 3, S, S] in [-1, 1] -> [N, P, D], row by row."""
        tokens = self.embeddings(pixels)
        parts = tokens.split(items_at_once(tokens.shape[1], tokens.device))
        encoded = [self.post_layernorm(self.encoder(part)) for part in parts]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded)
