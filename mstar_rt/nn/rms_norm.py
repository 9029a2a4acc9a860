"""Root-mean-square norms with the weights of the Gemma family, which are stored less one.

All arithmetic is float32 whatever the dtype of the tokens, as in training; the result has the dtype of the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear

RMS_EPS = 1e-6


class Modulation(NamedTuple):
    """What a condition makes of one norm and its residual branch; each broadcasts against the tokens [..., D]."""

    scale: torch.Tensor
    """The published scale plus one."""
    shift: torch.Tensor
    gate: torch.Tensor


def normed(x: torch.Tensor, weight: torch.Tensor | None, modulation: Modulation | None) -> torch.Tensor:
    """x [..., D] over the root of its mean square (plus 1e-6), times 1 + `weight` or modulated: exactly one of both."""
    shape = x.shape[-1:]
    if modulation is not None:
        y = functional.rms_norm(x.to(torch.float32), shape, None, RMS_EPS)
        return torch.addcmul(modulation.shift, y, modulation.scale).to(x.dtype)
    assert weight is not None
    return functional.rms_norm(x.to(torch.float32), shape, 1 + weight.to(torch.float32), RMS_EPS).to(x.dtype)


class RMSNorm(nn.Module):
    """The norm with weights, which stand in files less one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor, modulation: Modulation | None = None) -> torch.Tensor:
        """x [..., D] -> [..., D]; takes no modulation, but stands where AdaptiveRMSNorm can stand."""
        assert modulation is None
        return normed(x, self.weight, None)


class AdaptiveRMSNorm(nn.Module):
    """The norm with scale and shift from a condition, which also gives the gate of the branch that follows."""

    def __init__(self, dim: int, condition_dim: int) -> None:
        super().__init__()
        self.dense = Linear(condition_dim, 3 * dim)

    def modulate(self, condition: torch.Tensor) -> torch.Tensor:
        """condition [..., C] -> 1 + scale, shift and gate, [..., 3, D]."""
        scale, shift, gate = self.dense(condition).unflatten(-1, (3, -1)).unbind(-2)
        return torch.stack([1 + scale, shift, gate], dim=-2)

    def forward(self, x: torch.Tensor, modulation: Modulation | None = None) -> torch.Tensor:
        """x [..., D] -> [..., D]."""
        return normed(x, None, modulation)
