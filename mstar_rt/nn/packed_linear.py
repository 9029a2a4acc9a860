"""Linear layers for inference whose rows come out the same, bit for bit, in however many rows they are computed.

Text is written one token at a time, in batches that change from step to step: what a request gets must not depend on
who shares its steps. oneDNN's product has that property from two rows on (so does every row of 1,100 in the sizes of
135 M and 3 B parameters, in float32 and bfloat16), torch's own does not; a lone row is computed twice.

The weights are laid out as oneDNN wants them, which is not only for large batches: on an AMD EPYC core, 576 x 1536 in
float32, 1, 2, 4 and 8 rows take 50, 49, 49 and 77 us, against 48, 89, 131 and 211 us of torch's product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from mstar_rt.nn.linear import _ONEDNN, _ONEDNN_DTYPES, PACKED_FOR_ROWS, Activation, Linear, _product, activated

MIN_ROWS = 2
Rows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class PackedLinear:
    """See the module. It keeps its own copy of the weights; on other devices than a CPU it is torch's product."""

    __slots__ = ("_bias", "_is_packed", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight [out, in], bias [out]."""
        weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._is_packed = _ONEDNN is not None and weight.device.type == "cpu" and weight.dtype in _ONEDNN_DTYPES
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS) if self._is_packed else weight

    @classmethod
    def of(cls, layer: Linear) -> PackedLinear:
        return cls(layer.weight, layer.bias)

    def __call__(
        self,
        x: torch.Tensor,
        activation: Activation = "none",
        residual: torch.Tensor | None = None,
        factor: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [rows, in], at least MIN_ROWS for the property -> activation(x weight + bias) + residual or times factor,
        [rows, out]."""
        if self._is_packed:
            return _product(x, self._weight, self._bias, activation, residual, factor)
        out = activated(functional.linear(x, self._weight, self._bias), activation)
        if residual is not None:
            return residual + out
        return out if factor is None else factor * out


def doubled(x: torch.Tensor) -> torch.Tensor:
    """A lone row [1, ...], as often as rows must be there."""
    return x.repeat(MIN_ROWS, *[1] * (x.dim() - 1))


def attend_once(attend: Rows) -> Rows:
    """The attention of a lone row, for one that was `doubled`."""

    def attend_lone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q[:1], k[:1], v[:1]).expand_as(q)

    return attend_lone
