"""Linear layers through the fastest matrix product there is for the device.

On a CPU in float32 torch calls MKL, which falls back to AVX2 on processors that are not Intel's; oneDNN, which the same
torch build carries, uses AVX-512 there. Measured on an AMD EPYC core, [1728, 128] x [128, 512]: 106 against 258 GFLOP/s
(forward, and nearly as much for both gradients). In bfloat16 both are oneDNN, but only one fuses what follows.
Everywhere else this is `torch.nn.functional.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_ONEDNN_DTYPES = (torch.float32, torch.bfloat16) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)

SMALL_PRODUCT = 500_000
"""Below this many multiplications oneDNN's 12 us of preparation cost more than its faster product saves."""
PACKED_WEIGHTS = 1 << 20
"""Larger layers gain less from being laid out beforehand (3 to 5 % against 7 to 10), and their copies are large."""
PACKED_FOR_ROWS = 1056

ALL = slice(None)
"""All outputs of a layer."""


class Linear(nn.Linear):
    """`torch.nn.Linear` by another route: same parameters, same result to rounding."""

    _packed: tuple[int, torch.Tensor] | None = None
    """The weights as oneDNN wants them, and the address of those that they were made from."""

    def forward(
        self, x: torch.Tensor, gelu: bool = False, residual: torch.Tensor | None = None, columns: slice = ALL
    ) -> torch.Tensor:
        """x [..., in] -> gelu(x weight + bias) + residual [..., out], as far as each is asked for; the GELU is exact.

        `columns`: a contiguous part of the outputs, the only ones computed.
        """
        if columns is not ALL:
            bias = None if self.bias is None else self.bias[columns]
            return _linear(x, self.weight[columns], bias, None, gelu, residual)
        return _linear(x, self.weight, self.bias, self._packed_now(), gelu, residual)

    def pack(self) -> None:
        """Keep a copy of the weights as oneDNN wants them, where that pays; they must not change in place any more."""
        self._packed = None
        if _ONEDNN is None or self.weight.device.type != "cpu" or self.weight.dtype not in _ONEDNN_DTYPES:
            return
        if SMALL_PRODUCT // PACKED_FOR_ROWS <= self.weight.numel() <= PACKED_WEIGHTS:
            weight = self.weight.detach()
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
            self._packed = (weight.data_ptr(), packed)

    def __getstate__(self) -> dict[str, Any]:
        """Copies are not packed."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}

    def _packed_now(self) -> torch.Tensor | None:
        """The packed weights, unless others have taken the place of those that they were made from."""
        return None if self._packed is None or self._packed[0] != self.weight.data_ptr() else self._packed[1]


def pack(network: nn.Module) -> None:
    """Prepare a network whose weights do not change any more; this keeps a second copy of its small layers."""
    for module in network.modules():
        if isinstance(module, Linear):
            module.pack()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K], weight [N, K], bias [N] -> [..., N]."""
    return _linear(x, weight, bias)


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    packed: torch.Tensor | None = None,
    gelu: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    takes_onednn = _takes_onednn(x, weight)
    if takes_onednn and not torch.is_grad_enabled():
        return _product(x, weight if packed is None else packed, bias, gelu, residual)
    out = _OneDnnLinear.apply(x, weight, bias) if takes_onednn else functional.linear(x, weight, bias)
    out = functional.gelu(out) if gelu else out
    return out if residual is None else residual + out


def _takes_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        _ONEDNN is not None
        and x.device.type == "cpu"
        and x.dtype is weight.dtype
        and x.dtype in _ONEDNN_DTYPES
        and x.numel() * weight.shape[0] >= SMALL_PRODUCT
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gelu: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    assert _ONEDNN is not None
    x = x.contiguous()  # a strided input sends oneDNN to its reference code, a hundred times slower
    if residual is None or gelu:
        out = _ONEDNN(x, weight, bias, "gelu" if gelu else "none", [], "none")
        return out if residual is None else residual + out
    return _ONEDNN.binary(x, residual.contiguous(), weight, bias, "add")


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
