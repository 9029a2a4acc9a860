"""The networks of ACT: what sees one camera, and the transformer that turns what is seen into actions.

Parameters have the published names, less `model.`; only query, key and value of an attention are one layer here.
Source: arXiv 2304.13705, section IV and appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear
from mstar_rt.nn.resnet import NUM_LAYERS, WIDTHS, ResNet18, feature_size
from mstar_rt.nn.vit import dense_attention
from policies.act.config import ActConfig

LONGEST_PERIOD = 10000.0
ROUNDING = 1e-6
"""Added to the size that positions are divided by, in training as here."""


class Eye(nn.Module):
    """Images of cameras of one size [N, 3, H, W] -> features of their places, row by row, [N, P, D].

    `num_layers` are passed one after the other; what is between two of them is a tensor, too.
    """

    num_layers = NUM_LAYERS

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.backbone = ResNet18()
        self.encoder_img_feat_input_proj = nn.Conv2d(WIDTHS[-1], config.dim, 1)

    def forward(self, images: torch.Tensor, layers: range) -> torch.Tensor:
        x = self.backbone(images, layers)
        if layers.stop < self.num_layers:
            return x
        return self.encoder_img_feat_input_proj(x).flatten(2).transpose(1, 2)


class Tokens(NamedTuple):
    """Where some requests stand between two layers of a transformer: `memory` [B, N, D], what was seen as the encoder
    has it so far, and `queries` [B, H, D], what became of the queries of the decoder."""

    memory: torch.Tensor
    queries: torch.Tensor

    def each(self) -> Iterator[Tokens]:
        """Those of every request, as a batch of one."""
        return map(Tokens, self.memory.split(1), self.queries.split(1))

    @staticmethod
    def joined(parts: Sequence[Tokens]) -> Tokens:
        return Tokens(torch.cat([part.memory for part in parts]), torch.cat([part.queries for part in parts]))


class Transformer(nn.Module):
    """What is seen and the state -> normalised actions: `begun`, `through` all layers, `actions`. `locate` once, before
    the first.

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

    @property
    def num_layers(self) -> int:
        """Of the encoder, then of the decoder."""
        return len(self.encoder.layers) + len(self.decoder.layers)

    def begun(self, state: torch.Tensor | None, features: Sequence[torch.Tensor]) -> Tokens:
        """Args: state [B, S], normalised; features of each camera [B, P, D], in their order."""
        latent = self.encoder_latent_input_proj.bias.expand(len(features[0]), 1, -1)
        alone = [latent] if state is None else [latent, self.encoder_robot_state_input_proj(state)[:, None]]
        queries = torch.zeros_like(self.decoder_pos_embed.weight).expand(len(latent), -1, -1)
        return Tokens(torch.cat([*alone, *features], dim=1), queries)

    def through(self, tokens: Tokens, layers: range) -> Tokens:
        """Some of the `num_layers`."""
        positions = torch.cat([self.encoder_1d_feature_pos_embed.weight, self._places])
        first = len(self.encoder.layers)
        memory = self.encoder(tokens.memory, positions, range(layers.start, min(layers.stop, first)))
        if layers.stop <= first:
            return Tokens(memory, tokens.queries)
        of_decoder = range(max(layers.start, first) - first, layers.stop - first)
        queries = self.decoder(tokens.queries, memory, positions, self.decoder_pos_embed.weight, of_decoder)
        return Tokens(memory, queries)

    def actions(self, tokens: Tokens) -> torch.Tensor:
        """[B, H, A], after the last layer."""
        return self.action_head(self.decoder.norm(tokens.queries))


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
        hidden = self.linear1(self.before(norm, x), activation="gelu" if self.has_gelu else "none")
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
    """tokens [B, N, D], their positions [N, D], some of the layers -> [B, N, D]; the last ends in the norm."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.pre_norm else nn.Identity()

    def forward(self, x: torch.Tensor, positions: torch.Tensor, layers: range) -> torch.Tensor:
        for index in layers:
            x = self.layers[index](x, positions)
        return self.norm(x) if layers and layers.stop == len(self.layers) else x


class Decoder(nn.Module):
    """One query for every action of the chunk, from nothing but its position: queries [B, H, D], memory [B, N, D],
    positions of the memory [N, D] and of the actions [H, D], some of the layers -> [B, H, D], before the norm."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        memory_positions: torch.Tensor,
        positions: torch.Tensor,
        layers: range,
    ) -> torch.Tensor:
        placed_memory = memory + memory_positions
        for index in layers:
            x = self.layers[index](x, memory, placed_memory, positions)
        return x


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
