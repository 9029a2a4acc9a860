"""Where a token is and at which time: sines and cosines, and what is learned on top of them."""

from __future__ import annotations

import math

import torch
from torch import nn

from mstar_rt.nn.linear import Linear

MAX_PERIOD = 10_000.0
TIME_CHANNELS = 256


def sinusoids(times: torch.Tensor, dim: int = TIME_CHANNELS) -> torch.Tensor:
    """times [N] -> float32 [N, dim]: cosines and then sines of times whose rates fall geometrically from 1."""
    half = dim // 2
    rates = torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=times.device) / half)
    angles = times.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def sincos_2d(width: int, side: int) -> torch.Tensor:
    """Positions of a square grid, row by row: float32 [side * side, width]; half of the channels tell the column, the
    others the row, each sines and then cosines of rates that fall geometrically from 1. Made in float64."""
    quarter = width // 4
    rates = MAX_PERIOD ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    angles = torch.arange(side, dtype=torch.float64)[:, None] * rates
    one = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, width / 2]
    columns = one.repeat(side, 1)
    rows = one.repeat_interleave(side, dim=0)
    return torch.cat([columns, rows], dim=1).float()


def grid_ids(grid: tuple[int, int], side: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """int64 [rows * columns]: where the cells of a grid are in one that is `side` wide."""
    rows, columns = (torch.arange(size, device=device) for size in grid)
    return (rows[:, None] * side + columns).flatten()


class TimeEmbedder(nn.Module):
    """Flow times to vectors. Parameters are named as published."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(TIME_CHANNELS, width), nn.SiLU(), Linear(width, width))

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, width]."""
        return self.mlp(sinusoids(times).to(next(self.parameters()).dtype))


class PositionTable(nn.Module):
    """A table of positions, as the file stores it."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.pos_embed = nn.Parameter(torch.empty(side * side, width), requires_grad=False)

    def fill(self) -> None:
        """For a network that does not come from a file."""
        with torch.no_grad():
            self.pos_embed.copy_(sincos_2d(self.pos_embed.shape[1], self.side))

    def forward(self, grid: tuple[int, int]) -> torch.Tensor:
        """[rows * columns, width]."""
        return self.pos_embed[grid_ids(grid, self.side, self.pos_embed.device)]
