"""GR00T's messages, and those that only look like them."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.gr00t import codec

DTYPES = st.sampled_from(["?", "u1", "<i4", ">i4", "<u8", "<f2", "<f4", ">f8"])


def file_of(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def encoded(data: Any, **changes: Any) -> bytes:
    return msgspec.msgpack.encode({"a": {"__ndarray_class__": True, "as_npy": data} | changes})


@settings(max_examples=40)
@given(
    DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.booleans(),
)
def test_arrays_come_out_as_numpy_wrote_them(array: np.ndarray, version: tuple[int, int], transposed: bool) -> None:
    written = array.T if transposed else array  # in Fortran order
    found = codec.unpack(encoded(file_of(written, version=version)))["a"]
    assert (found.dtype, found.shape) == (written.dtype, written.shape)
    assert found.tobytes() == written.tobytes()
    assert not found.flags.writeable


@given(st.integers(0, 2**31))
@settings(max_examples=20)
def test_what_is_packed_numpy_reads(seed: int) -> None:
    array = np.random.default_rng(seed).random((1, 4, 2), np.float32)
    (answer,) = msgspec.msgpack.decode(codec.pack([{"arm": array}]))
    assert np.array_equal(np.load(io.BytesIO(answer["arm"]["as_npy"]), allow_pickle=False), array)


def crafted(header: str, data: bytes = b"\0" * 24, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        (b"", "no .npy file"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 20, "no .npy file of version 1 to 3"),
        (crafted("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }"), "24 bytes, expected 32"),
        (crafted("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999), }"), "9999999999"),
        (crafted("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"), "dtype '|O'"),
        (crafted("{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }"), "dtype '<c8'"),
        (crafted("{'descr': '|V8', 'fortran_order': False, 'shape': (3,), }"), "dtype '|V8'"),
        (crafted("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }"), "a header that numpy does not write"),
        (crafted("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }"), "a header that numpy does not write"),
        (crafted("__import__('os').system('true')"), "a header that numpy does not write"),
        (crafted("(" * 500), "a header that numpy does not write"),
        (crafted("x" * 600), "a header of 600 bytes, at most 512"),
        (file_of(np.array([{"a": 1}], object), allow_pickle=True), "dtype '|O'"),
        (file_of(np.array(["go"])), "dtype '<U2'"),
    ],
)  # fmt: skip
def test_files_that_hold_no_numbers_are_refused(file: bytes, wrong: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        codec.unpack(encoded(file))
    assert wrong in str(failure.value)


def test_a_map_with_more_than_a_file_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"not just an .npy file besides"):
        codec.unpack(encoded(file_of(np.zeros(3)), extra=1))
    with pytest.raises(InvalidArgument, match=r"not just an .npy file besides"):
        codec.unpack(encoded("text"))
