"""Tensors on the wire: the bytes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_rt.errors import InvalidArgument, Unimplemented
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import (
    array_from_tensor,
    dtype_name,
    tensor_from_array,
    tensor_from_bytes,
    wire_dtype,
)

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 4)])
def test_every_dtype_survives(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(name)
    back = array_from_tensor(tensor_from_array(array), "a")
    assert back.dtype.name == name
    np.testing.assert_array_equal(back, array)
    assert dtype_name(wire_dtype(name)) == name


def test_bytes_are_little_endian_and_row_major() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=">i2").T
    tensor = tensor_from_array(array)
    assert tensor.data == np.array([1, 3, 2, 4], dtype="<i2").tobytes()
    assert tensor.dtype == tensor_pb2.DTYPE_INT16


def test_bfloat16_is_widened_exactly() -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    back = array_from_tensor(tensor_from_bytes("bfloat16", (4,), bits.tobytes()), "a")
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (tensor_pb2.Tensor(shape=[1], data=b"x"), "tensor 'a' has no known dtype"),
        (tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[1]), "tensor 'a' is empty"),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[2, 3], data=b"12345"),
            r"tensor 'a' has 5 bytes, expected 24 for float32 of shape \[2, 3\]",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[2**40, 2**40], data=b"1"),
            "tensor 'a' has 1 bytes, expected 1208925819614629174706176",
        ),
        (tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_BOOL, shape=[1], data=b"\x02"), "bytes other than 0 and 1"),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_UINT8, shape=[1] * 9, data=b"1"),
            "9 dimensions, at most 8",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[2**62, 2**63 - 1, 0], data=b""),
            "too large for an array",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT64, shape=[2**31 - 1, 2**31 - 1, 0], data=b""),
            "too large for an array",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tensor: tensor_pb2.Tensor, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        array_from_tensor(tensor, "a")


def test_shared_memory_is_refused_and_never_ignored() -> None:
    tensor = tensor_pb2.Tensor(
        dtype=tensor_pb2.DTYPE_UINT8, shape=[1], shared=tensor_pb2.SharedMemoryRef(region="r", num_bytes=1)
    )
    with pytest.raises(Unimplemented, match="'a' refers to shared memory 'r'"):
        array_from_tensor(tensor, "a")


def test_a_dtype_that_the_wire_lacks_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="dtype complex64 cannot be sent"):
        tensor_from_array(np.zeros(2, np.complex64))
