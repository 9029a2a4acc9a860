"""Specifications of what goes in and out of a task: tensors with shapes, dtypes and units, and plain parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstar_rt.errors import InvalidArgument, nearest

ParamValue = bool | int | float | str | tuple[float, ...]


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """numpy makes it anew each time, which takes as long as checking a tensor."""
    return str(dtype.name)


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a task.

    `shape` mixes sizes and symbols: ("T", 64, 64, 3) accepts any T >= 1, and a symbol means one size in all tensors of
    a request. "T-1" is one less than T, which a tensor before this one must have. `dtypes` are numpy names of what is
    accepted; nothing is converted, and the first is the usual one. `max_abs` bounds every value in `units`: what is far
    beyond what a robot or a network can mean would come out as numbers without meaning, or NaN.
    """

    name: str
    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...]
    doc: str
    units: str = ""
    optional: bool = False
    max_sizes: tuple[tuple[str, int], ...] = ()
    max_abs: float | None = None

    def check(self, array: np.ndarray, sizes: dict[str, int], where: str) -> None:
        """Raise InvalidArgument unless `array` fits; `sizes` collects the symbols' sizes over a request's tensors."""
        label = f"{where}: tensor {self.name!r}"
        if dtype_name(array.dtype) not in self.dtypes:
            raise InvalidArgument(f"{label} has dtype {array.dtype.name}, expected {' or '.join(self.dtypes)}")
        if array.shape != self.shape or not array.size:
            self._check_shape(array, sizes, label)
        # NaN comes through both; no copy of a large tensor is made.
        least, most = (float(array.min()), float(array.max())) if array.dtype.kind == "f" else (0.0, 0.0)
        if not (math.isfinite(least) and math.isfinite(most)):
            raise InvalidArgument(f"{label} holds NaN or infinity, every value must be finite")
        largest = max(-least, most)
        if self.max_abs is not None and largest > self.max_abs:
            unit = f" {self.units}" if self.units else ""
            raise InvalidArgument(f"{label} holds values up to {largest:g}, expected at most {self.max_abs:g}{unit}")

    def _check_shape(self, array: np.ndarray, sizes: dict[str, int], label: str) -> None:
        if array.ndim != len(self.shape):
            raise InvalidArgument(f"{label} has shape {list(array.shape)}, expected {self.shape_text()}")
        limits = dict(self.max_sizes)
        for size, want in zip(array.shape, self.shape, strict=True):
            expected = _expected_size(want, size, sizes, label)
            if size == 0:
                raise InvalidArgument(f"{label} has shape {list(array.shape)}, expected every size to be at least 1")
            if size != expected:
                raise InvalidArgument(f"{label} has shape {list(array.shape)}, expected {self.shape_text(sizes)}")
            if isinstance(want, str) and size > limits.get(want, size):
                raise InvalidArgument(f"{label} has {want} = {size}, the limit of this model is {limits[want]}")

    def shape_text(self, sizes: Mapping[str, int] | None = None) -> str:
        known = sizes or {}
        return (
            "["
            + ", ".join(f"{d}={known[d]}" if isinstance(d, str) and d in known else str(d) for d in self.shape)
            + "]"
        )


def _expected_size(want: int | str, size: int, sizes: dict[str, int], label: str) -> int:
    if isinstance(want, int):
        return want
    if want.endswith("-1"):
        symbol = want.removesuffix("-1")
        if symbol not in sizes:
            raise InvalidArgument(f"{label} has a size {want}, but no tensor is given that says what {symbol} is")
        return sizes[symbol] - 1
    return sizes.setdefault(want, size)


@dataclass(frozen=True)
class ParamSpec:
    """One plain option of a task: bool, int, float, str or floats (a tuple). `default` None means required."""

    name: str
    kind: str
    default: ParamValue | None
    doc: str
    units: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None
    optional: bool = False

    def check(self, value: Any, where: str) -> ParamValue:
        """The value in its declared kind, or InvalidArgument: an option is never clamped or ignored."""
        label = f"{where}: option {self.name!r}"
        if self.kind == "bool" and isinstance(value, bool):
            return value
        if self.kind == "str" and isinstance(value, str):
            if self.choices and value not in self.choices:
                raise InvalidArgument(f"{label} is {value!r}, expected one of {', '.join(self.choices)}")
            return value
        if self.kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return int(self._in_range(value, label))
        if self.kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._in_range(float(value), label)
        if self.kind == "floats" and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            if self.length is not None and len(value) != self.length:
                raise InvalidArgument(f"{label} has {len(value)} numbers, expected {self.length}")
            return tuple(self._in_range(float(v), label) for v in value)
        raise InvalidArgument(f"{label} is {value!r}, expected {self.kind}")

    def _in_range(self, value: float, label: str) -> float:
        if not math.isfinite(value):
            raise InvalidArgument(f"{label} is {value}, expected a finite number")
        low, high = self.minimum, self.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            unit = f" {self.units}" if self.units else ""
            bounds = f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"
            raise InvalidArgument(f"{label} is {value}, expected {bounds}{unit}")
        return value


def check_tensors(specs: Sequence[TensorSpec], tensors: Mapping[str, np.ndarray], where: str) -> dict[str, int]:
    """Check every tensor of a request against `specs`; returns the sizes of the symbols."""
    by_name = {spec.name: spec for spec in specs}
    for name in tensors:
        if name not in by_name:
            raise InvalidArgument(f"{where}: unknown tensor {name!r}, {nearest(name, by_name)}")
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.name in tensors:
            spec.check(tensors[spec.name], sizes, where)
        elif not spec.optional:
            raise InvalidArgument(
                f"{where}: tensor {spec.name!r} is missing, expected {spec.dtypes[0]} {spec.shape_text()} ({spec.doc})"
            )
    return sizes


def check_params(specs: Sequence[ParamSpec], params: Mapping[str, Any], where: str) -> dict[str, ParamValue]:
    """All parameters of a request with defaults filled in; unknown, missing or out of range raises InvalidArgument."""
    by_name = {spec.name: spec for spec in specs}
    for name in params:
        if name not in by_name:
            raise InvalidArgument(f"{where}: unknown option {name!r}, {nearest(name, by_name)}")
    checked: dict[str, ParamValue] = {}
    for spec in specs:
        if spec.name in params:
            checked[spec.name] = spec.check(params[spec.name], where)
        elif spec.default is not None:
            checked[spec.name] = spec.default
        elif not spec.optional:
            raise InvalidArgument(f"{where}: option {spec.name!r} is missing ({spec.doc})")
    return checked
