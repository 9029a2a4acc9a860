"""Linear layers through the fastest matrix product there is for the device.

On a CPU in float32 torch calls MKL, which falls back to AVX2 on processors that are not Intel's; oneDNN, which the same
torch build carries, uses AVX-512 there. Measured on an AMD EPYC core, [1728, 128] x [128, 512]: 106 against 258 GFLOP/s
(forward, and nearly as much for both gradients). In bfloat16 both are oneDNN, but only one fuses what follows.
Everywhere else this is `torch.nn.functional.linear`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

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

Activation = Literal["none", "gelu", "gelu_tanh", "silu"]
"""None, the exact GELU, its approximation by a tanh, or x sigmoid(x)."""
_FUSED: dict[Activation, tuple[str, str]] = {
    "none": ("none", "none"), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", "none"),
}  # fmt: skip
"""What oneDNN calls them."""


class Linear(nn.Linear):
    """`torch.nn.Linear` by another route: same parameters, same result to rounding."""

    _packed: tuple[int, torch.Tensor] | None = None
    """The weights as oneDNN wants them, and the address of those that they were made from."""

    def forward(
        self,
        x: torch.Tensor,
        activation: Activation = "none",
        residual: torch.Tensor | None = None,
        columns: slice = ALL,
        factor: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [..., in] -> activation(x weight + bias) + residual [..., out], as far as each is asked for.

        `columns`: a contiguous part of the outputs, the only ones computed. `factor` [..., out] multiplies, where the
        residual would be added; there is one of the two at most.
        """
        if columns is not ALL:
            bias = None if self.bias is None else self.bias[columns]
            return _linear(x, self.weight[columns], bias, None, activation, residual, factor)
        return _linear(x, self.weight, self.bias, self._packed_now(), activation, residual, factor)

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


class PreparedLinear:
    """A `Linear` for inference, of which everything is looked up beforehand that its module looks up at each call.

    Its weights may change in place as far as `pack` allows it; it does not see that others take their place. Around the
    product a call takes 0.3 us where the module takes 3.7, and 0.5 us where it takes 5 with cold caches.
    """

    __slots__ = ("_bias", "_fewest_numbers", "_packed", "_weight")

    def __init__(self, layer: Linear) -> None:
        self._weight = weight = layer.weight.detach()
        self._bias = None if layer.bias is None else layer.bias.detach()
        packed = layer._packed_now()
        self._packed = weight if packed is None else packed
        can_take_onednn = _ONEDNN is not None and weight.device.type == "cpu" and weight.dtype in _ONEDNN_DTYPES
        self._fewest_numbers = SMALL_PRODUCT / weight.shape[0] if can_take_onednn else math.inf

    def __call__(
        self,
        x: torch.Tensor,
        activation: Activation = "none",
        residual: torch.Tensor | None = None,
        columns: slice = ALL,
        factor: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Linear.forward`; x has the weights' dtype."""
        if columns is not ALL:
            bias = None if self._bias is None else self._bias[columns]
            return _linear(x, self._weight[columns], bias, None, activation, residual, factor)
        if x.numel() >= self._fewest_numbers:
            return _product(x, self._packed, self._bias, activation, residual, factor)
        out = functional.linear(x, self._weight, self._bias)
        return _combined(activated(out, activation), residual, factor)


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
    activation: Activation = "none",
    residual: torch.Tensor | None = None,
    factor: torch.Tensor | None = None,
) -> torch.Tensor:
    assert residual is None or factor is None
    takes_onednn = _takes_onednn(x, weight)
    if takes_onednn and not torch.is_grad_enabled():
        return _product(x, weight if packed is None else packed, bias, activation, residual, factor)
    out = _OneDnnLinear.apply(x, weight, bias) if takes_onednn else functional.linear(x, weight, bias)
    return _combined(activated(out, activation), residual, factor)


def activated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation == "none":
        return x
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def _combined(out: torch.Tensor, residual: torch.Tensor | None, factor: torch.Tensor | None) -> torch.Tensor:
    if residual is not None:
        return residual + out
    return out if factor is None else factor * out


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
    activation: Activation = "none",
    residual: torch.Tensor | None = None,
    factor: torch.Tensor | None = None,
) -> torch.Tensor:
    assert _ONEDNN is not None
    x = x.contiguous()  # a strided input sends oneDNN to its reference code, a hundred times slower
    other = factor if residual is None else residual
    if other is None or activation != "none":
        name, algorithm = _FUSED[activation]
        out = _ONEDNN(x, weight, bias, name, [], algorithm)
        return _combined(out, residual, factor)
    return _ONEDNN.binary(x, other.contiguous(), weight, bias, "add" if factor is None else "mul")


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
