"""The autoencoder of images: convolutions down to latents, and up again.

Parameters are named as published. Source: the autoencoder of FLUX, black-forest-labs/flux.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from generators.bagel.config import AutoencoderConfig

NORM_EPS = 1e-6


class Moments(NamedTuple):
    """Of the Gaussian that an image is encoded to, [N, z, h, w] each; not scaled."""

    mean: torch.Tensor
    log_variance: torch.Tensor


class ResnetBlock(nn.Module):
    def __init__(self, size_in: int, size_out: int, num_groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(num_groups, size_in, eps=NORM_EPS)
        self.conv1 = nn.Conv2d(size_in, size_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(num_groups, size_out, eps=NORM_EPS)
        self.conv2 = nn.Conv2d(size_out, size_out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(size_in, size_out, 1) if size_in != size_out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        y = self.conv2(functional.silu(self.norm2(y)))
        return y + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class AttentionBlock(nn.Module):
    """One head over all positions."""

    def __init__(self, size: int, num_groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(num_groups, size, eps=NORM_EPS)
        self.q = nn.Conv2d(size, size, 1)
        self.k = nn.Conv2d(size, size, 1)
        self.v = nn.Conv2d(size, size, 1)
        self.proj_out = nn.Conv2d(size, size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (part(y).flatten(2).transpose(1, 2)[:, None] for part in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(attended[:, 0].transpose(1, 2).reshape(x.shape))


class Downsample(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(size, size, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.pad(x, (0, 1, 0, 1)))  # right and below alone, as it was trained


class Upsample(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(size, size, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """Blocks of one resolution, and the way to the next, None at the last."""

    def __init__(self, size_in: int, size_out: int, num_blocks: int, num_groups: int) -> None:
        super().__init__()
        sizes = [size_in, *[size_out] * num_blocks]
        self.block = nn.ModuleList(ResnetBlock(a, b, num_groups) for a, b in pairwise(sizes))
        self.downsample: nn.Module | None = None
        self.upsample: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        way = self.downsample if self.upsample is None else self.upsample
        return x if way is None else way(x)


class Middle(nn.Module):
    def __init__(self, size: int, num_groups: int) -> None:
        super().__init__()
        self.block_1 = ResnetBlock(size, size, num_groups)
        self.attn_1 = AttentionBlock(size, num_groups)
        self.block_2 = ResnetBlock(size, size, num_groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class Encoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        sizes = [config.channels * multiplier for multiplier in (1, *config.multipliers)]
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.down = nn.ModuleList(Level(a, b, config.num_blocks, config.num_groups) for a, b in pairwise(sizes))
        for level, size in zip(self.down[:-1], sizes[1:], strict=False):
            level.downsample = Downsample(size)
        self.mid = Middle(sizes[-1], config.num_groups)
        self.norm_out = nn.GroupNorm(config.num_groups, sizes[-1], eps=NORM_EPS)
        self.conv_out = nn.Conv2d(sizes[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        return self.conv_out(functional.silu(self.norm_out(self.mid(x))))


class Decoder(nn.Module):
    """Levels are numbered from the finest one, as in the encoder, and run from the coarsest."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        sizes = [config.channels * multiplier for multiplier in config.multipliers]
        self.conv_in = nn.Conv2d(config.latent_channels, sizes[-1], 3, padding=1)
        self.mid = Middle(sizes[-1], config.num_groups)
        before = [*sizes[1:], sizes[-1]]
        self.up = nn.ModuleList(
            Level(a, b, config.num_blocks + 1, config.num_groups) for a, b in zip(before, sizes, strict=True)
        )
        for level, size in zip(self.up[1:], sizes[1:], strict=True):
            level.upsample = Upsample(size)
        self.norm_out = nn.GroupNorm(config.num_groups, sizes[0], eps=NORM_EPS)
        self.conv_out = nn.Conv2d(sizes[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(functional.silu(self.norm_out(x)))


class Autoencoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def encode(self, pixels: torch.Tensor) -> Moments:
        """pixels [N, 3, H, W], -1 to 1, both sides multiples of `downsample`."""
        return Moments(*self.encoder(pixels).chunk(2, dim=1))

    def latents(self, moments: Moments, noise: torch.Tensor | None = None) -> torch.Tensor:
        """[N, z, h, w], scaled: the mean, or drawn with `noise` of that shape, N(0, 1)."""
        z = moments.mean if noise is None else moments.mean + torch.exp(0.5 * moments.log_variance) * noise
        return self.config.scale * (z - self.config.shift)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """latents [N, z, h, w], scaled -> pixels [N, 3, H, W], -1 to 1 but for overshoot."""
        return self.decoder(latents / self.config.scale + self.config.shift)


def to_tokens(latents: torch.Tensor, patch: int) -> torch.Tensor:
    """[N, z, h, w] -> [N, T, patch * patch * z]: patches row by row; in a patch its rows, columns and then channels."""
    parts = latents.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [N, z, rows, p, columns, q]
    return parts.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def from_tokens(tokens: torch.Tensor, grid: tuple[int, int], patch: int) -> torch.Tensor:
    """The inverse of `to_tokens`; `grid`: rows and columns of tokens."""
    parts = tokens.unflatten(2, (patch, patch, -1)).unflatten(1, grid)  # [N, rows, columns, p, q, z]
    return parts.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
