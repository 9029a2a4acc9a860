"""Rotary positions in one dimension: channel i of a head turns together with channel i + head_dim / 2.

Rotated queries and keys come out with the two channels of a pair side by side. Attention does not see in which order
channels stand, as long as queries and keys agree, and complex arithmetic takes two calls in place of seven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

BASE = 10_000.0


@dataclass(frozen=True)
class LongContext:
    """How the Llama 3 family slows down channels, so that it can be trained further on longer texts than before.

    Wavelengths in positions: below `original_positions / high_factor` nothing changes, above `original_positions /
    low_factor` a channel turns `factor` times slower, and between the two it is interpolated.
    Source: the published `rope_scaling` of type llama3.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_positions: int

    def slowed(self, turns: torch.Tensor) -> torch.Tensor:
        """turns: of each channel, in radians per position."""
        num_waves = self.original_positions * turns / (2 * math.pi)
        kept = ((num_waves - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0, 1)
        return turns * (kept + (1 - kept) / self.factor)


class Rotary:
    """The table of one head size, which grows as later positions are asked for."""

    def __init__(self, head_dim: int, base: float = BASE, long_context: LongContext | None = None) -> None:
        assert head_dim % 2 == 0, head_dim
        self.head_dim = head_dim
        self.base = base
        self.long_context = long_context
        self._table: torch.Tensor | None = None

    def at(self, positions: torch.Tensor, max_position: int) -> torch.Tensor:
        """positions int64 [...], all at most `max_position` -> complex64 [..., 1, head_dim / 2], for all heads."""
        return self._rows(max_position + 1, positions.device)[positions].unsqueeze(-2)

    def _rows(self, count: int, device: torch.device) -> torch.Tensor:
        table = self._table
        if table is None or len(table) < count or table.device != device:
            # Outside of inference mode, where it could not take part in a gradient.
            with torch.inference_mode(False), torch.no_grad():
                table = self._table = self._made(max(count, 0 if table is None else 2 * len(table)), device)
        return table

    def _made(self, count: int, device: torch.device) -> torch.Tensor:
        positions = torch.arange(count, dtype=torch.float32, device=device)
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        turns = self.base**-exponents
        turns = turns if self.long_context is None else self.long_context.slowed(turns)
        angles = positions[:, None] * turns
        return torch.polar(torch.ones_like(angles), angles)


def rotate_halves(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn queries and keys [..., heads, head_dim] by a table [..., 1, head_dim / 2] of `Rotary`, in float32.

    The result has the dtype of `heads` and its channels in pairs. Where torch compiles, which writes no code for
    complex numbers, the table is the real view of it, [..., 1, head_dim / 2, 2].
    """
    first, second = heads.to(torch.float32).chunk(2, dim=-1)
    if not turn.is_complex():
        cosine, sine = turn.unbind(-1)
        turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return turned.flatten(-2).to(heads.dtype)
    return torch.view_as_real(torch.complex(first, second) * turn).flatten(-2).to(heads.dtype)
