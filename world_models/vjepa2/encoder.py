"""The V-JEPA 2 video encoder."""

from __future__ import annotations

import torch
from torch import nn

from mstar_rt.nn.linear import linear
from mstar_rt.nn.norms import normalise_latents
from mstar_rt.nn.rope3d import Rotation, grid_rotation
from mstar_rt.nn.vit import BLOCK_NORM_EPS, Block, dense_attention, initialise, items_at_once, over_heads
from world_models.vjepa2.config import EncoderConfig


class PatchEmbed(nn.Module):
    """Holds the published convolution and runs it as one matrix product: kernel and stride are equal."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kernel = (config.tubelet_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.num_channels, config.dim, kernel_size=kernel, stride=kernel)
        self._doubled_weight: torch.Tensor | None = None

    def freeze(self) -> None:
        """Keep what `embed_doubled` derives from the weights, which must not change afterwards (1.4 ms per call)."""
        self._doubled_weight = self.proj.weight.detach().sum(2).flatten(1)

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """[B, 3, T, H, W] -> [B, (T / tubelet) * patches, D]."""
        tubelet, patch = self.proj.kernel_size[0], self.proj.kernel_size[1]
        parts = video.unflatten(4, (-1, patch)).unflatten(3, (-1, patch)).unflatten(2, (-1, tubelet))
        parts = parts.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        return linear(parts, self.proj.weight.flatten(1), self.proj.bias)

    def embed_doubled(self, frames: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> [B, patches, D], as `forward` on each frame repeated to fill a tubelet, at half the cost."""
        patch = self.proj.kernel_size[1]
        parts = frames.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
        parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        weight = self.proj.weight.sum(2).flatten(1) if self._doubled_weight is None else self._doubled_weight
        return linear(parts, weight, self.proj.bias)


class Encoder(nn.Module):
    """Video or single frames to patch latents; all tokens see all tokens.

    Parameter names are those of the published weights less `module.` and `backbone.`.
    Source: arXiv 2506.09985, section 2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(Block(config.dim, config.num_heads, config.mlp_dim) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=BLOCK_NORM_EPS)
        self._rotations: dict[tuple[object, ...], Rotation] = {}
        initialise(self, self.blocks)

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """Encode clips.

        Args:
            video: [B, 3, T, H, W], ImageNet-normalised; T a multiple of the tubelet, H and W of the patch.
        Returns: [B, (T / tubelet) * (H / patch) * (W / patch), D], after the final norm, time slowest.
        """
        num_tubelets = video.shape[2] // self.config.tubelet_size
        return self._transform(self.patch_embed(video), num_tubelets, video.shape[-2], video.shape[-1])

    def frame_latents(self, frames: torch.Tensor) -> torch.Tensor:
        """Encode every frame alone, doubled into a tubelet of its own: [B, 3, H, W] -> [B, P, D]."""
        return self._transform(self.patch_embed.embed_doubled(frames), 1, frames.shape[-2], frames.shape[-1])

    def encode_frames(self, frames: torch.Tensor) -> torch.Tensor:
        """`frame_latents`, then the affine-free LayerNorm that the predictor was trained behind."""
        return normalise_latents(self.frame_latents(frames))

    def _transform(self, tokens: torch.Tensor, num_tubelets: int, height: int, width: int) -> torch.Tensor:
        rotation = self._rotation(num_tubelets, height, width, tokens.device)
        parts = tokens.split(items_at_once(tokens.shape[1], tokens.device))
        encoded = [self._encode(part, rotation) for part in parts]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded)

    def _encode(self, tokens: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        attend = dense_attention()
        for block in self.blocks:
            tokens = block(tokens, rotation, attend)
        return self.norm(tokens)

    def _rotation(self, num_tubelets: int, height: int, width: int, device: torch.device) -> Rotation:
        """Tables depend on the shape of the input alone; they are kept, and they stay float32 whatever the weights."""
        key = (num_tubelets, height, width, device)
        if key not in self._rotations:
            config = self.config
            tables = grid_rotation(
                num_tubelets, height // config.patch_size, width // config.patch_size, config.head_dim,
                trained_grid=(config.grid_size, config.grid_size), device=device,
            )  # fmt: skip
            self._rotations[key] = over_heads(Rotation(*(table.flatten(0, 1) for table in tables)))
        return self._rotations[key]
