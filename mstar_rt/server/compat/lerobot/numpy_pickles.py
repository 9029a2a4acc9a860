"""The globals by which numpy pickles arrays and scalars, as stand-ins: only plain numbers, and no byte is copied."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.lerobot.pickle_values import MAX_NAMED, Allowed, Globals, Payload, Unfinished

DTYPES = frozenset({"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"})
MAX_DIMENSIONS = 8
ORDERS = ("C", "F")


class _Dtype(Unfinished):
    def __init__(self, code: str) -> None:
        self.value = np.dtype(code).newbyteorder("<")

    def build(self, state: Any) -> None:
        """(version, byte order, no subarray, no names, no fields, size, alignment, flags)"""
        if type(state) is not tuple or len(state) < 5 or state[2:5] != (None, None, None):
            raise InvalidArgument("the pickle has an array of structures, expected plain numbers")
        if state[1] not in ("<", "|", "="):  # to swap bytes is to copy them
            raise InvalidArgument("the pickle has an array that is not little-endian: convert it on the robot")


class _DtypeClass(Allowed):
    """numpy.dtype(code, align, copy)"""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> _Dtype:
        code = arguments[0] if arguments else None
        if type(code) is not str:
            raise InvalidArgument("the pickle has an array whose dtype is no name")
        if code not in DTYPES:
            raise InvalidArgument(
                f"the pickle has an array of dtype {code[:MAX_NAMED]!r}, expected numbers: {', '.join(sorted(DTYPES))}"
            )
        return _Dtype(code)


class _Array(Unfinished):
    """Views the payload."""

    def __init__(self) -> None:
        self._value: np.ndarray | None = None

    def build(self, state: Any) -> None:
        """(version, shape, dtype, is in Fortran order, bytes)"""
        if self._value is not None or type(state) is not tuple or len(state) != 5:
            raise InvalidArgument("the pickle has an array that is not pickled as numpy does")
        _, shape, dtype, is_fortran, data = state
        self._value = _viewed(data, dtype, shape, "F" if is_fortran is True else "C")

    def finished(self, finish: Callable[[Any], Any]) -> np.ndarray:
        if self._value is None:
            raise InvalidArgument("the pickle has an array without data")
        return self._value


class _NdarrayClass(Allowed):
    """numpy.ndarray, which is named as an argument only."""


class _Reconstruct(Allowed):
    """_reconstruct(ndarray, (0,), b"b"): an array whose state follows."""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> _Array:
        if not arguments or not isinstance(arguments[0], _NdarrayClass):
            raise InvalidArgument("the pickle makes an array of a class that is not numpy.ndarray")
        return _Array()


class _FromBuffer(Allowed):
    """_frombuffer(bytes, dtype, shape, order)"""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> _Array:
        if len(arguments) != 4:
            raise InvalidArgument("the pickle has an array that is not pickled as numpy does")
        data, dtype, shape, order = arguments
        array = _Array()
        array._value = _viewed(data, dtype, shape, order)
        return array


class _Scalar(Allowed):
    """scalar(dtype, bytes), as a plain number."""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> Any:
        if len(arguments) != 2:
            raise InvalidArgument("the pickle has a number that is not pickled as numpy does")
        return _viewed(arguments[1], arguments[0], (), "C").item()


class _Encode(Allowed):
    """_codecs.encode(text, "latin1"): protocol 2 has no bytes."""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> memoryview:
        if len(arguments) != 2 or type(arguments[0]) is not str or arguments[1] not in ("latin1", "latin-1"):
            raise InvalidArgument("the pickle encodes something that is no bytes of protocol 2")
        payload.make(len(arguments[0]))
        try:
            return memoryview(arguments[0].encode("latin1"))
        except UnicodeEncodeError:
            raise InvalidArgument("the pickle encodes something that is no bytes of protocol 2") from None


def _viewed(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    if type(data) is not memoryview or not isinstance(dtype, _Dtype) or order not in ORDERS:
        raise InvalidArgument("the pickle has an array that is not pickled as numpy does")
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise InvalidArgument("the pickle has an array without a shape")
    kind = dtype.value
    num_bytes = math.prod(shape) * kind.itemsize
    if not data or num_bytes != len(data):
        raise InvalidArgument(
            f"the pickle has an array of {len(data)} bytes, expected the {num_bytes} of its shape, and at least one"
        )
    return np.frombuffer(data, kind).reshape(shape, order=order)


def _numpy() -> Globals:
    allowed: dict[tuple[str, str], Allowed] = {
        ("numpy", "ndarray"): _NdarrayClass(),
        ("numpy", "dtype"): _DtypeClass(),
        ("_codecs", "encode"): _Encode(),
    }
    for core in ("numpy._core", "numpy.core"):  # since numpy 2, and before
        allowed[f"{core}.multiarray", "_reconstruct"] = _Reconstruct()
        allowed[f"{core}.multiarray", "scalar"] = _Scalar()
        allowed[f"{core}.numeric", "_frombuffer"] = _FromBuffer()
    return allowed


NUMPY: Globals = _numpy()
