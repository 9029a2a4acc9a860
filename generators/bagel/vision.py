"""How images are looked at: a SigLIP tower for images of any shape, and what brings its tokens into the backbone.

Source: arXiv 2505.14683, and the published weights.
"""

from __future__ import annotations

import torch
from torch import nn

from generators.bagel.config import BagelConfig, VisionConfig
from generators.bagel.embedders import PositionTable, grid_ids
from mstar_rt.nn.linear import Linear
from mstar_rt.nn.siglip import NORM_EPS, SiglipEncoder
from mstar_rt.nn.vit import items_at_once

Grid = tuple[int, int]
"""Rows and columns of patches."""


class GridPatchEmbeddings(nn.Module):
    """A patch is a vector of its rows, columns and then colours. Its learned position is that of its cell in the square
    of the table: images are not stretched to it."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.table_side = config.table_side
        self.patch_embedding = Linear(3 * config.patch_size**2, config.width)
        self.position_embedding = nn.Embedding(config.table_side**2, config.width)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, P, D]."""
        size = self.patch_size
        parts = pixels.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [N, 3, rows, p, columns, q]
        grid = parts.shape[2], parts.shape[4]
        patches = self.patch_embedding(parts.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2))
        return patches + self.position_embedding(grid_ids(grid, self.table_side, pixels.device))


class GridTower(nn.Module):
    """The published `vit_model.vision_model`, with queries, keys and values in one."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = GridPatchEmbeddings(config)
        self.encoder = SiglipEncoder(config.width, config.depth, config.num_heads, config.mlp_dim)
        self.post_layernorm = nn.LayerNorm(config.width, eps=NORM_EPS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, P, D], row by row."""
        return self.post_layernorm(self.encoder(self.embeddings(pixels)))


class Connector(nn.Module):
    """Two linear layers around a GELU that a tanh approximates."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.fc1 = Linear(width_in, width)
        self.fc2 = Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width_in] -> [..., width]."""
        return self.fc2(self.fc1(x, activation="gelu_tanh"))


class Vision(nn.Module):
    """Images as tokens of the backbone."""

    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        self.config = config.vision
        self.tower = GridTower(config.vision)
        self.connector = Connector(config.vision.width, config.language.width)
        self.vit_pos_embed = PositionTable(config.language.width, config.vision.max_side)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [N, 3, H, W], RGB, -1 to 1, both sides multiples of `patch_size` -> [N, P, width], row by row."""
        grid = self._grid(pixels)
        pixels = pixels.to(self.connector.fc1.weight.dtype)
        parts = pixels.split(items_at_once(grid[0] * grid[1], pixels.device))
        tokens = torch.cat([self.connector(self.tower(part)) for part in parts])
        return tokens + self.vit_pos_embed(grid)

    def _grid(self, pixels: torch.Tensor) -> Grid:
        """A cell beyond a table's side would take the position of one in the next row."""
        size, most = self.config.patch_size, min(self.config.table_side, self.config.max_side)
        rows, columns = (side // size for side in pixels.shape[2:])
        assert pixels.shape[2:] == (rows * size, columns * size), f"{list(pixels.shape)} is not in patches of {size}"
        assert max(rows, columns) <= most, f"{rows} x {columns} patches, but positions go to {most} x {most}"
        return rows, columns


def published(key: str) -> tuple[str, ...]:
    """Under which keys of `ema.safetensors` our parameter `key` of `Vision` stands."""
    named = f"vit_model.vision_model.{key.removeprefix('tower.')}" if key.startswith("tower.") else key
    if ".qkv_proj." not in named:
        return (named,)
    return tuple(named.replace(".qkv_proj.", f".{part}_proj.") for part in "qkv")
