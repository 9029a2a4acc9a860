"""Linear layers through the fastest matrix product there is for the device.

On a CPU in float32 torch calls MKL, which falls back to AVX2 on processors that are not Intel's; oneDNN, which the same
torch build carries, uses AVX-512 there. Measured on an AMD EPYC core, [1728, 128] x [128, 512]: 106 against 258 GFLOP/s
(forward, and nearly as much for both gradients). Everywhere else this is `torch.nn.functional.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Linear(nn.Linear):
    """`torch.nn.Linear` by another route: same parameters, same result to float32 rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K], weight [N, K], bias [N] -> [..., N]."""
    if not _takes_onednn(x, weight):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _OneDnnLinear.apply(x, weight, bias)
    return _product(x, weight, bias)


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`linear`, then the exact (erf) GELU, in one pass over memory where nothing has to be kept for a gradient."""
    if _takes_onednn(x, weight) and not torch.is_grad_enabled():
        return _product(x, weight, bias, "gelu")
    return functional.gelu(linear(x, weight, bias))


def _takes_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        _ONEDNN is not None
        and x.device.type == "cpu"
        and x.dtype is torch.float32
        and weight.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    assert _ONEDNN is not None
    return _ONEDNN(x, weight, bias, activation, [], "none")


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grads[0].flatten(0, -2)
        grad_x = _product(grads[0], weight.t()) if ctx.needs_input_grad[0] else None
        grad_weight = _product(rows.t(), x.flatten(0, -2).t()) if ctx.needs_input_grad[1] else None
        grad_bias = rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias
