"""Names of tensor element types: numpy's, and "bfloat16", which numpy sees as the uint16 that holds its
bits.
"""

from __future__ import annotations

import math

import numpy as np

from mstar_rt.errors import InvalidArgument, nearest

_NUMPY_NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
_DTYPES: dict[str, np.dtype] = {name: np.dtype(name) for name in _NUMPY_NAMES} | {"bfloat16": np.dtype("uint16")}

MAX_DIMENSIONS = 16


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype that views a tensor of dtype `name`.

    Raises:  InvalidArgument: no such dtype.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise InvalidArgument(f"{name!r} is not a tensor dtype: {nearest(name, _DTYPES)}")
    return dtype


def num_tensor_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a C-contiguous tensor.

    Raises:  InvalidArgument: no such dtype, a negative extent, or more than MAX_DIMENSIONS dimensions.
    """
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise InvalidArgument(
            f"{list(shape)} is not a tensor shape: expected at most {MAX_DIMENSIONS} extents, none negative"
        )
    return numpy_dtype(name).itemsize * math.prod(shape)
