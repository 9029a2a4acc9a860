"""The networks of V-JEPA 2 without actions: the encoder by parts, and the masked predictor."""

from __future__ import annotations

import torch
from torch import nn

from mstar_rt.nn.linear import Linear
from mstar_rt.nn.rope3d import Rotation, rotation_for
from mstar_rt.nn.vit import BLOCK_NORM_EPS, Block, dense_attention, initialise, over_heads
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2_video.config import MaskedPredictorConfig


def patch_rotation(patches: torch.Tensor, grid_size: int, head_dim: int) -> Rotation:
    """Rotary tables of patches [..., N] of a clip, counted by time, row and column."""
    time = patches.div(grid_size**2, rounding_mode="floor")
    row = patches.remainder(grid_size**2).div(grid_size, rounding_mode="floor")
    return over_heads(rotation_for(time, row, patches.remainder(grid_size), head_dim))


def encode_blocks(
    encoder: Encoder, tokens: torch.Tensor, patches: torch.Tensor, first: int, num_blocks: int
) -> torch.Tensor:
    """Some of the encoder's blocks on tokens [B, N, D], which are patches [B, N] of their clips; all see all."""
    rotation = patch_rotation(patches, encoder.config.grid_size, encoder.config.head_dim)
    attend = dense_attention()
    for block in encoder.blocks[first : first + num_blocks]:
        tokens = block(tokens, rotation, attend)
    return tokens


class MaskedPredictor(nn.Module):
    """A transformer over the latents of visible patches and one learned token for each hidden patch; all see all.

    The order of tokens does not matter, their places in the clip reach attention through the rotary positions.
    Parameter names are those of the published weights, less wrappers; `mask_tokens` are published one by one.
    Source: arXiv 2506.09985, section 2.
    """

    def __init__(self, config: MaskedPredictorConfig, grid_size: int) -> None:
        super().__init__()
        self.config = config
        self.grid_size = grid_size
        self.predictor_embed = Linear(config.latent_dim, config.dim)
        self.mask_tokens = nn.Parameter(torch.zeros(config.num_mask_tokens, 1, 1, config.dim))
        self.predictor_blocks = nn.ModuleList(
            Block(config.dim, config.num_heads, config.mlp_dim) for _ in range(config.depth)
        )
        self.predictor_norm = nn.LayerNorm(config.dim, eps=BLOCK_NORM_EPS)
        self.predictor_proj = Linear(config.dim, config.latent_dim)
        initialise(self, self.predictor_blocks)

    def forward(
        self, latents: torch.Tensor, context: torch.Tensor, targets: torch.Tensor, mask_token: torch.Tensor
    ) -> torch.Tensor:
        """Predict hidden patches.

        Args:
            latents: [B, C, D] of the visible patches, after the encoder's last norm.
            context, targets: [B, C] and [B, M], places of the visible and of the hidden patches in their clips.
            mask_token: [B], which learned token stands for the hidden ones.
        Returns: [B, M, D].
        """
        hidden = self.mask_tokens[mask_token].squeeze(2).expand(-1, targets.shape[1], -1)
        tokens = torch.cat([self.predictor_embed(latents), hidden], dim=1)
        rotation, attend = self.rotation(torch.cat([context, targets], dim=1)), dense_attention()
        for block in self.predictor_blocks:
            tokens = block(tokens, rotation, attend)
        return self.read(tokens[:, context.shape[1] :])

    def rotation(self, places: torch.Tensor) -> Rotation:
        """Tables of patches [..., N] of a clip."""
        return patch_rotation(places, self.grid_size, self.config.head_dim)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [..., dim] after the last block -> latents [..., latent_dim]."""
        return self.predictor_proj(self.predictor_norm(tokens))
