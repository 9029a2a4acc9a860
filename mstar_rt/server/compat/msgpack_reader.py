"""msgpack from strangers to plain values. What a message may cost is bounded before it is paid: depth, the number of
values, lengths of texts and keys; extension types and repeated keys are refused.

msgspec, which we use among ourselves, makes of a message of n bytes objects of up to 64 n.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mstar_rt.errors import InvalidArgument

MAX_DEPTH = 8
MAX_VALUES = 10_000
"""An observation has some fifty: arrays are one value each."""
MAX_TEXT_BYTES = 64 << 10
MAX_KEY_BYTES = 256

Revive = Callable[[dict[Any, Any]], Any]

_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: struct.Struct(">f"), 0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"), 0xCD: struct.Struct(">H"), 0xCE: struct.Struct(">I"), 0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"), 0xD1: struct.Struct(">h"), 0xD2: struct.Struct(">i"), 0xD3: struct.Struct(">q"),
}  # fmt: skip
_LENGTHS = {1: struct.Struct(">B"), 2: struct.Struct(">H"), 4: struct.Struct(">I")}
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}


def unpacked(data: bytes, revive: Revive) -> Any:
    """One value, which is all of `data`. Binary values are views of it; every map becomes what `revive` makes of it.

    Raises:  InvalidArgument.
    """
    reader = _Reader(memoryview(data), revive)
    value = reader.value(0)
    if reader.at != len(data):
        raise InvalidArgument(
            f"the message has {len(data) - reader.at} bytes after its end, expected one msgpack value"
        )
    return value


class _Reader:
    def __init__(self, data: memoryview, revive: Revive) -> None:
        self._data = data
        self._revive = revive
        self._num_values = 0
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"the message is nested more than {MAX_DEPTH} deep")
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise InvalidArgument(
                f"the message has more than {MAX_VALUES} values: send images and vectors as arrays, not as lists"
            )
        tag = self._take(1)[0]
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 0x100
        if tag < 0xC0:
            return self._short(tag, depth)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            number = _NUMBERS[tag]
            return number.unpack(self._take(number.size))[0]
        if tag in _BINARY:
            return self._take(self._length(_BINARY[tag]))
        if tag in _TEXT:
            return self._text(self._length(_TEXT[tag]))
        if tag in _ARRAY:
            return self._array(self._length(_ARRAY[tag]), depth)
        if tag in _MAP:
            return self._map(self._length(_MAP[tag]), depth)
        raise InvalidArgument(f"the message has a msgpack value of type 0x{tag:02x}, which is not taken")

    def _short(self, tag: int, depth: int) -> Any:
        """Maps, arrays and texts whose length is in the tag."""
        if tag < 0x90:
            return self._map(tag & 0x0F, depth)
        if tag < 0xA0:
            return self._array(tag & 0x0F, depth)
        return self._text(tag & 0x1F)

    def _array(self, num: int, depth: int) -> list[Any]:
        self._check_room(num)
        return [self.value(depth + 1) for _ in range(num)]

    def _map(self, num: int, depth: int) -> Any:
        self._check_room(2 * num)
        found: dict[Any, Any] = {}
        for _ in range(num):
            key = self.value(MAX_DEPTH)  # a key is no container
            if isinstance(key, memoryview):
                key = key.tobytes() if len(key) <= MAX_KEY_BYTES else None
            if not isinstance(key, str | bytes) or len(key) > MAX_KEY_BYTES:
                raise InvalidArgument(f"the message has a key that is no text of at most {MAX_KEY_BYTES} bytes")
            if key in found:
                raise InvalidArgument(f"the message has the key {key[:64]!r} twice")
            found[key] = self.value(depth + 1)
        return self._revive(found)

    def _check_room(self, num: int) -> None:
        """A length that cannot be true is refused before anything is made."""
        if num > len(self._data) - self.at:
            raise self._cut_off()

    def _text(self, num_bytes: int) -> str:
        if num_bytes > MAX_TEXT_BYTES:
            raise InvalidArgument(f"the message has a text of {num_bytes} bytes, at most {MAX_TEXT_BYTES} are taken")
        try:
            return str(self._take(num_bytes), "utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument("the message has a text that is not UTF-8") from None

    def _length(self, size: int) -> int:
        length: int = _LENGTHS[size].unpack(self._take(size))[0]
        return length

    def _take(self, num_bytes: int) -> memoryview:
        start, end = self.at, self.at + num_bytes
        if end > len(self._data):
            raise self._cut_off()
        self.at = end
        return self._data[start:end]

    def _cut_off(self) -> InvalidArgument:
        return InvalidArgument(f"the message is cut off: {len(self._data)} bytes are no complete msgpack value")
