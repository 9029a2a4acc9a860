"""Root-mean-square norms. The Gemma family stores their weights less one, the Llama family as they are.

All arithmetic is float32 whatever the dtype of the tokens, as in training; the result has the dtype of the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.linear import Linear

RMS_EPS = 1e-6


class NormKind(NamedTuple):
    """What is added to the mean square, and what to the stored weights."""

    eps: float
    offset: float


GEMMA = NormKind(RMS_EPS, 1.0)


class Modulation(NamedTuple):
    """What a condition makes of one norm and its residual branch; each broadcasts against the tokens [..., D]."""

    scale: torch.Tensor
    """The published scale plus one."""
    shift: torch.Tensor
    gate: torch.Tensor


def normed(
    x: torch.Tensor, weight: torch.Tensor | None, modulation: Modulation | None, kind: NormKind = GEMMA
) -> torch.Tensor:
    """x [..., D] over the root of its mean square, times offset + `weight` or modulated: exactly one of both."""
    shape = x.shape[-1:]
    if modulation is not None:
        y = functional.rms_norm(x.to(torch.float32), shape, None, kind.eps)
        return torch.addcmul(modulation.shift, y, modulation.scale).to(x.dtype)
    assert weight is not None
    factor = kind.offset + weight.to(torch.float32) if kind.offset else weight.to(torch.float32)
    return functional.rms_norm(x.to(torch.float32), shape, factor, kind.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """The norm with weights, as they stand in files."""

    def __init__(self, dim: int, kind: NormKind = GEMMA) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.full((dim,), 1 - kind.offset))

    def forward(self, x: torch.Tensor, modulation: Modulation | None = None) -> torch.Tensor:
        """x [..., D] -> [..., D]; takes no modulation, but stands where AdaptiveRMSNorm can stand."""
        assert modulation is None
        return normed(x, self.weight, None, self.kind)


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
