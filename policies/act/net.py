"""The networks of ACT: what sees one camera, and the transformer that turns what is seen into actions.

Parameters have the published names, less `model.`; only query, key and value of an attention are one layer here.
Source: arXiv 2304.13705, section IV and appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear
from mstar_rt.nn.resnet import WIDTHS, ResNet18, feature_size
from mstar_rt.nn.vit import dense_attention
from policies.act.config import ActConfig

LONGEST_PERIOD = 10000.0
ROUNDING = 1e-6
"""Added to the size that positions are divided by, in training as here."""


class Eye(nn.Module):
    """Images of cameras of one size [N, 3, H, W] -> features of their places, row by row, [N, P, D]."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.backbone = ResNet18()
        self.encoder_img_feat_input_proj = nn.Conv2d(WIDTHS[-1], config.dim, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.encoder_img_feat_input_proj(self.backbone(images)).flatten(2).transpose(1, 2)


class Transformer(nn.Module):
    """What is seen and the state -> normalised actions. `locate` once, before the first.

    The latent of the encoder of actions is zero when the policy acts, so its token is the bias of its projection.
    """

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.config = config
        state_size, dim = config.features.state_size, config.dim
        self.encoder_latent_input_proj = Linear(config.latent_dim, dim)
        if state_size is not None:
            self.encoder_robot_state_input_proj = Linear(state_size, dim)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 if state_size is None else 2, dim)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.decoder_pos_embed = nn.Embedding(config.action_horizon, dim)
        self.action_head = Linear(dim, config.features.action_size)
        self._places = torch.empty(0)

    def locate(self) -> None:
        """Embed the places of what the cameras see, which depends on nothing but their sizes."""
        places = [
            place_embedding(feature_size(camera.height), feature_size(camera.width), self.config.dim)
            for camera in self.config.cameras
        ]
        self._places = torch.cat(places).to(self.encoder_1d_feature_pos_embed.weight)

    def forward(self, state: torch.Tensor | None, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Args: state [B, S], normalised; features of each camera [B, P, D], in their order. Returns [B, H, A]."""
        latent = self.encoder_latent_input_proj.bias.expand(len(features[0]), 1, -1)
        alone = [latent] if state is None else [latent, self.encoder_robot_state_input_proj(state)[:, None]]
        positions = torch.cat([self.encoder_1d_feature_pos_embed.weight, self._places])
        memory = self.encoder(torch.cat([*alone, *features], dim=1), positions)
        return self.action_head(self.decoder(memory, positions, self.decoder_pos_embed.weight))


class Attention(nn.Module):
    """Multi-head attention; what is looked for and what is looked at may carry positions, what is read does not."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = Linear(config.dim, 3 * config.dim)
        self.out_proj = Linear(config.dim, config.dim)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        """query and residual [B, N, D], key and value [B, M, D] -> residual + attention [B, N, D]."""
        dim = query.shape[-1]
        parts = [self.qkv(x, columns=slice(i * dim, (i + 1) * dim)) for i, x in enumerate((query, key, value))]
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in parts)
        return self.out_proj(dense_attention()(q, k, v).flatten(-2), residual=residual)


class _Layer(nn.Module):
    """What encoder and decoder layers share: norms before or after each part, and the two layers that end both."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.pre_norm, self.has_gelu = config.pre_norm, config.activation == "gelu"
        self.norm1, self.norm2 = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.linear1 = Linear(config.dim, config.mlp_dim)
        self.linear2 = Linear(config.mlp_dim, config.dim)

    def before(self, norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return norm(x) if self.pre_norm else x

    def after(self, norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return x if self.pre_norm else norm(x)

    def mlp(self, norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear1(self.before(norm, x), gelu=self.has_gelu)
        hidden = hidden if self.has_gelu else functional.relu(hidden)
        return self.after(norm, self.linear2(hidden, residual=x))


class EncoderLayer(_Layer):
    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        self.self_attn = Attention(config)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        normed = self.before(self.norm1, x)
        placed = normed + positions
        x = self.after(self.norm1, self.self_attn(placed, placed, normed, residual=x))
        return self.mlp(self.norm2, x)


class DecoderLayer(_Layer):
    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        self.norm3 = nn.LayerNorm(config.dim)
        self.self_attn = Attention(config)
        self.multihead_attn = Attention(config)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, placed_memory: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        normed = self.before(self.norm1, x)
        placed = normed + positions
        x = self.after(self.norm1, self.self_attn(placed, placed, normed, residual=x))
        query = self.before(self.norm2, x) + positions
        x = self.after(self.norm2, self.multihead_attn(query, placed_memory, memory, residual=x))
        return self.mlp(self.norm3, x)


class Encoder(nn.Module):
    """tokens [B, N, D], their positions [N, D] -> [B, N, D]."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.pre_norm else nn.Identity()

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, positions)
        return self.norm(x)


class Decoder(nn.Module):
    """One query for every action of the chunk, from nothing but its position: memory [B, N, D], positions of the memory
    [N, D] and of the actions [H, D] -> [B, H, D]."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, memory: torch.Tensor, memory_positions: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        placed_memory = memory + memory_positions
        x = torch.zeros_like(positions).expand(len(memory), -1, -1)
        for layer in self.layers:
            x = layer(x, memory, placed_memory, positions)
        return self.norm(x)


def place_embedding(height: int, width: int, dim: int) -> torch.Tensor:
    """Of every place of a feature map, row by row: sine and cosine of its row, then of its column, [height * width, D].

    Rows and columns count from 1 and are spread over one turn, whatever the size.
    """
    frequencies = LONGEST_PERIOD ** -(torch.arange(0, dim // 2, 2, dtype=torch.float32) / (dim // 2))
    rows, columns = (_waves(size, frequencies) for size in (height, width))
    placed = torch.cat([rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)], dim=-1)
    return placed.flatten(0, 1)


def _waves(size: int, frequencies: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(1, size + 1, dtype=torch.float32) / (size + ROUNDING) * (2 * math.pi)
    turned = angles[:, None] * frequencies
    return torch.stack([turned.sin(), turned.cos()], dim=-1).flatten(1)
