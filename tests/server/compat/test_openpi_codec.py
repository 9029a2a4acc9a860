"""openpi's messages, and those that only look like them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat import msgpack_reader
from mstar_rt.server.compat.msgpack_reader import unpacked
from mstar_rt.server.compat.openpi.codec import OpenpiCodec

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=9) | st.binary(max_size=9), inner, max_size=20),
    max_leaves=9,
)  # fmt: skip
DTYPES = st.sampled_from(["?", "u1", "i2", "<i4", ">i4", "<u8", "<f2", "<f4", ">f8"])


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.tobytes() if isinstance(value, memoryview) else value


def wire_array(array: np.ndarray, as_text: bool = False, **changes: Any) -> dict[Any, Any]:
    fields = {
        "__ndarray__": True,
        "data": array.tobytes(),
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    } | changes
    return fields if as_text else {key.encode(): value for key, value in fields.items()}


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@settings(max_examples=40)
@given(PLAIN)
def test_every_plain_value_comes_out_as_it_went_in(value: Any) -> None:
    if depth_of(value) <= msgpack_reader.MAX_DEPTH:
        assert plain(unpacked(encoded(value), lambda found: found)) == value


@settings(max_examples=40)
@given(DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))), st.booleans())
def test_arrays_come_out_as_they_went_in(array: np.ndarray, as_text: bool) -> None:
    found = OpenpiCodec().unpack(encoded({"a": wire_array(array, as_text)}))["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert not found.flags.writeable


def test_numpy_scalars_are_numbers_and_texts() -> None:
    def scalar(data: Any, dtype: str) -> Any:
        return OpenpiCodec().unpack(encoded({b"__npgeneric__": True, b"data": data, b"dtype": dtype}))

    assert [scalar(1.5, "<f4"), scalar(3, "<i8"), scalar(True, "|b1"), scalar("go", "<U2")] == [1.5, 3, True, "go"]
    for data, dtype in ((1.5, "<i8"), (2**40, "<i4"), (-1, "|u1"), ("a", "<f4"), (None, "<f4"), (1, "|O"), (1, "<c8")):
        with pytest.raises(InvalidArgument):
            scalar(data, dtype)


@pytest.mark.parametrize("as_text", [False, True])
def test_answers_have_the_keys_that_the_client_has(as_text: bool) -> None:
    codec = OpenpiCodec()
    actions = np.arange(6, dtype=np.float32).reshape(3, 2)
    codec.unpack(encoded({"state": wire_array(actions, as_text)}))
    answer = msgspec.msgpack.decode(codec.pack({"actions": actions, "policy_timing": {"infer_ms": 1.5}}))
    assert answer == {"actions": wire_array(actions, as_text), "policy_timing": {"infer_ms": 1.5}}
    assert msgspec.msgpack.decode(OpenpiCodec().pack({"a": actions})) == {"a": wire_array(actions)}


ARRAY = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"dtype": "|O"}, "has dtype '|O', expected a plain number"),
        ({"dtype": "|V4"}, "has dtype '|V4'"),
        ({"dtype": "<c8"}, "has dtype '<c8'"),
        ({"dtype": "<M8[s]"}, "has dtype"),
        ({"dtype": "f4,f4"}, "has dtype"),
        ({"dtype": "(1000000,)f4"}, "has dtype"),
        ({"dtype": [["a", "<f4"]]}, "has dtype"),
        ({"shape": [2, 4]}, "has 24 bytes, expected 32 for float32 of shape [2, 4]"),
        ({"shape": [2**40, 2**40]}, "size '1099511627776' in its shape"),
        ({"shape": [2**31, 2**31, 2**31]}, "has 24 bytes, expected"),
        ({"shape": [0, 2**31, 2**31], "data": b""}, "too large"),
        ({"shape": [-2, -3]}, "size '-2' in its shape"),
        ({"shape": [2.0, 3]}, "size '2.0' in its shape"),
        ({"shape": [True, 6]}, "size 'True' in its shape"),
        ({"shape": "23"}, "no shape"),
        ({"shape": [1] * 9}, "no shape of at most 8 sizes"),
        ({"data": "text"}, "data is a str"),
        ({"data": [0] * 24}, "data is a list"),
        ({"dtype": "|b1", "shape": [3], "data": b"\0\1\2"}, "other than 0 and 1"),
        ({"extra": 1}, "has not just the keys"),
    ],
)
def test_arrays_that_are_none_are_refused(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        OpenpiCodec().unpack(encoded({"a": wire_array(ARRAY, **changes)}))
    assert wrong in str(failure.value)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"", "cut off"),
        (b"\xdd\xff\xff\xff\xff", "cut off"),  # a list of four thousand million values
        (b"\xdf\xff\xff\xff\xff", "cut off"),
        (b"\xc6\xff\xff\xff\xff", "cut off"),
        (b"\xdb\x00\x00\x00\x05abc", "cut off"),
        (encoded([None] * 20_000), "more than 10000 values"),
        (encoded([{}] * 20_000), "more than 10000 values"),
        (b"\x91" * 9 + b"\xc0", "nested more than 8 deep"),
        (b"\x81\xa1a" * 100_000 + b"\xc0", "nested more than 8 deep"),
        (b"\xd4\x01\x00", "type 0xd4"),  # an extension
        (b"\xc1", "type 0xc1"),
        (b"\xa2\xff\xfe", "not UTF-8"),
        (encoded("x" * 70_000), "a text of 70000 bytes"),
        (encoded({"k" * 300: 1}), "a key that is no text"),
        (b"\x81\x01\x02", "a key that is no text"),
        (b"\x81\x90\x02", "a key that is no text"),
        (b"\x82\xa1a\x01\xa1a\x02", "the key 'a' twice"),
        (encoded(1) + b"\x00", "1 bytes after its end"),
    ],
)
def test_messages_that_are_none_are_refused(data: bytes, wrong: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        OpenpiCodec().unpack(data)
    assert wrong in str(failure.value)
