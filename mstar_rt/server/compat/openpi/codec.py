"""openpi's messages: msgpack, with numpy arrays as maps of four keys.

Source:  openpi-client 0.1, msgpack_numpy. Its keys are bytes; other clients of the protocol use text.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.arrays import array_from, dtype_of
from mstar_rt.server.compat.msgpack_reader import unpacked

ARRAY, SCALAR = "__ndarray__", "__npgeneric__"
KEYS = {ARRAY: {ARRAY, "data", "dtype", "shape"}, SCALAR: {SCALAR, "data", "dtype"}}
TEXT_DTYPE = "U"


class OpenpiCodec:
    """Of one connection. Answers have keys of the kind that the client's own arrays have; bytes, before it sent any."""

    def __init__(self) -> None:
        self._text_keys = False

    def unpack(self, data: bytes) -> Any:
        """Arrays are read-only views of `data`.

        Raises:  InvalidArgument.
        """
        return unpacked(data, self._revive)

    def pack(self, message: Any) -> bytes:
        return msgspec.msgpack.encode(message, enc_hook=self._packable)

    def _revive(self, found: dict[Any, Any]) -> Any:
        for marker in (ARRAY, SCALAR):
            as_bytes = marker.encode()
            if as_bytes in found or marker in found:
                self._text_keys = marker in found
                fields = {
                    key.decode("ascii", "replace") if isinstance(key, bytes) else key: found[key] for key in found
                }
                if fields.keys() != KEYS[marker] or len(fields) != len(found):
                    raise InvalidArgument(
                        f"a map with {marker} has not just the keys {', '.join(sorted(KEYS[marker]))}"
                    )
                return _array(fields) if marker == ARRAY else _scalar(fields)
        return found

    def _packable(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} is not packed")
        fields = {ARRAY: True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}
        return fields if self._text_keys else {key.encode(): field for key, field in fields.items()}


def _array(fields: dict[str, Any]) -> np.ndarray:
    return array_from(fields["data"], dtype_of(fields["dtype"]), fields["shape"])


def _scalar(fields: dict[str, Any]) -> Any:
    """A numpy number as Python's own; a numpy text (its dtype has the length: "<U12") as text."""
    value, given = fields["data"], fields["dtype"]
    if isinstance(value, str) and isinstance(given, str) and given.lstrip("<>=").startswith(TEXT_DTYPE):
        return value
    dtype = dtype_of(given)
    if not _is_of(value, dtype):
        raise InvalidArgument(f"a scalar of {dtype.name} is {str(value)[:64]} of type {type(value).__name__}")
    return value


def _is_of(value: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b" or isinstance(value, bool):
        return dtype.kind == "b" and isinstance(value, bool)
    if dtype.kind == "f":
        return isinstance(value, int | float)
    limits = np.iinfo(dtype)
    return isinstance(value, int) and int(limits.min) <= value <= int(limits.max)
