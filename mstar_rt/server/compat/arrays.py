"""Arrays from strangers' bytes: what they declare is compared with what there is before anything is made."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mstar_rt.errors import InvalidArgument

MAX_DIMENSIONS = 8
MAX_SIZE = 1 << 31
DTYPE = re.compile(r"[<>=|]?(?:b1|[iu][1248]|f[248])")
"""As numpy writes it. Objects, records, complex numbers and texts are none of these."""


def dtype_of(given: Any) -> np.dtype[Any]:
    """Raises:  InvalidArgument: not a plain number."""
    if isinstance(given, bytes | memoryview):
        given = bytes(given[:64]).decode(errors="replace")
    if not isinstance(given, str) or not DTYPE.fullmatch(given):
        shown = repr(given)[:64]
        raise InvalidArgument(f"an array has dtype {shown}, expected a plain number, e.g. '|u1' or '<f4'")
    return np.dtype(given)


def array_from(data: Any, dtype: np.dtype[Any], shape: Any, fortran_order: bool = False) -> np.ndarray:
    """A read-only array over `data`.

    Raises:  InvalidArgument.
    """
    sizes = _sizes(shape)
    num_bytes = math.prod(sizes) * dtype.itemsize
    if not isinstance(data, bytes | memoryview):
        raise InvalidArgument(f"an array's data is a {type(data).__name__}, expected bytes")
    if len(data) != num_bytes:
        raise InvalidArgument(
            f"an array has {len(data)} bytes, expected {num_bytes} for {dtype.name} of shape {list(sizes)}"
        )
    if math.prod(size for size in sizes if size) > MAX_SIZE:  # beside a size of 0 they need no bytes
        raise InvalidArgument(f"an array has shape {list(sizes)}, which is too large")
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise InvalidArgument("an array of bool holds bytes other than 0 and 1")
    array = np.frombuffer(data, dtype).reshape(sizes, order="F" if fortran_order else "C")
    array.flags.writeable = False
    return array


def _sizes(shape: Any) -> Sequence[int]:
    if not isinstance(shape, list | tuple) or len(shape) > MAX_DIMENSIONS:
        raise InvalidArgument(f"an array has no shape of at most {MAX_DIMENSIONS} sizes")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
            raise InvalidArgument(f"an array has a size {str(size)[:64]!r} in its shape, expected 0 to {MAX_SIZE}")
    return tuple(shape)
