"""Wire tensors and numpy arrays: the one place that knows the byte layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mstar_rt.errors import InvalidArgument, Unimplemented
from mstar_rt.protos import tensor_pb2

BFLOAT16 = "bfloat16"
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**40

_NUMPY_NAMES = {
    tensor_pb2.DTYPE_BOOL: "bool", tensor_pb2.DTYPE_UINT8: "uint8", tensor_pb2.DTYPE_INT8: "int8",
    tensor_pb2.DTYPE_UINT16: "uint16", tensor_pb2.DTYPE_INT16: "int16", tensor_pb2.DTYPE_INT32: "int32",
    tensor_pb2.DTYPE_INT64: "int64", tensor_pb2.DTYPE_FLOAT16: "float16", tensor_pb2.DTYPE_BFLOAT16: BFLOAT16,
    tensor_pb2.DTYPE_FLOAT32: "float32", tensor_pb2.DTYPE_FLOAT64: "float64",
}  # fmt: skip
_WIRE_DTYPES = {name: dtype for dtype, name in _NUMPY_NAMES.items()}


def wire_dtype(name: str) -> tensor_pb2.DType:
    """The wire's dtype for numpy's name (or "bfloat16").

    Raises:  InvalidArgument: the wire has no such dtype.
    """
    if name not in _WIRE_DTYPES:
        raise InvalidArgument(f"dtype {name} cannot be sent, expected one of {', '.join(_WIRE_DTYPES)}")
    return _WIRE_DTYPES[name]


def dtype_name(dtype: tensor_pb2.DType) -> str:
    """The inverse of `wire_dtype`; "unknown" for what this version does not know."""
    return _NUMPY_NAMES.get(dtype, "unknown")


def tensor_from_bytes(dtype: str, shape: Sequence[int], data: bytes) -> tensor_pb2.Tensor:
    """A wire tensor from little-endian, row-major bytes. dtype: numpy's name or "bfloat16"."""
    return tensor_pb2.Tensor(dtype=wire_dtype(dtype), shape=shape, data=data)


def fill_tensor(tensor: tensor_pb2.Tensor, dtype: str, shape: Sequence[int], data: bytes) -> None:
    """`tensor_from_bytes` in place: a message that is put into another one is copied."""
    tensor.dtype = wire_dtype(dtype)
    tensor.shape.extend(shape)
    tensor.data = data


def tensor_from_array(array: np.ndarray) -> tensor_pb2.Tensor:
    """A wire tensor with a copy of `array`.

    Raises:  InvalidArgument: a dtype that the wire does not have.
    """
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return tensor_from_bytes(array.dtype.name, array.shape, little_endian.tobytes())


def array_from_tensor(tensor: tensor_pb2.Tensor, name: str, shared: memoryview | None = None) -> np.ndarray:
    """A read-only array over the message's bytes (bfloat16: a new float32 array, which is exact), or over those that its
    shared-memory reference stands for.

    Raises:  InvalidArgument: no dtype, no content, or a byte count that does not fit shape and dtype.
             Unimplemented: content by shared-memory reference.
    """
    if shared is None:
        refuse_shared_memory(tensor, name)
    if tensor.dtype not in _NUMPY_NAMES:
        raise InvalidArgument(f"tensor {name!r} has no known dtype, expected one of {', '.join(_WIRE_DTYPES)}")
    if tensor.WhichOneof("content") is None:
        raise InvalidArgument(f"tensor {name!r} is empty: neither data nor a shared-memory reference is set")
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise InvalidArgument(
            f"tensor {name!r} has {len(tensor.shape)} dimensions, at most {MAX_DIMENSIONS} are allowed"
        )
    dtype, shape = _NUMPY_NAMES[tensor.dtype], tuple(tensor.shape)
    data = tensor.data if shared is None else shared
    stored = np.dtype("<u2") if dtype == BFLOAT16 else np.dtype(dtype).newbyteorder("<")
    expected = math.prod(shape) * stored.itemsize
    if len(data) != expected:
        raise InvalidArgument(
            f"tensor {name!r} has {len(data)} bytes, expected {expected} for {dtype} of shape {list(shape)}"
        )
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:  # beside a size of 0 they need no bytes
        raise InvalidArgument(f"tensor {name!r} has shape {list(shape)}, which is too large for an array")
    if dtype == "bool" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise InvalidArgument(f"tensor {name!r} of dtype bool holds bytes other than 0 and 1")
    array = np.frombuffer(data, stored).reshape(shape)
    return widen_bfloat16(array) if dtype == BFLOAT16 else array


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 numbers given as uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def refuse_shared_memory(message: tensor_pb2.Tensor | tensor_pb2.Image, name: str) -> None:
    """Raises Unimplemented if the content is a shared-memory reference."""
    if message.WhichOneof("content") == "shared":
        raise Unimplemented(
            f"{name!r} refers to shared memory {message.shared.region!r}, which was not agreed on: raw images and the "
            "state of a control session may be there, if it was opened with a region; send the bytes in the field `data`"
        )
