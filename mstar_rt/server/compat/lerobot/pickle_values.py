"""What an unpickler reads from, and what it makes: plain values, and stand-ins for the globals that may be named."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from mstar_rt.errors import InvalidArgument

MAX_VALUES = 10_000
"""In the finished value, each counted as often as it is referred to: a few memoised lists can stand for 2**64."""
MAX_DEPTH = 16
MAX_NAMED = 200
"""Characters of a foreign name that an error repeats."""


class Unfinished:
    """What an allowed global makes, until the whole payload is read."""

    def build(self, state: Any) -> None:
        """Opcode BUILD. Raises:  InvalidArgument."""
        raise InvalidArgument("the pickle gives state to something that has none")

    def finished(self, finish: Callable[[Any], Any]) -> Any:
        """The value; `finish` does the same to a part of it. Raises:  InvalidArgument."""
        raise InvalidArgument("the pickle has something unfinished where data is expected")


class Allowed:
    """A global that may be named. It is a stand-in: nothing of that name is imported."""

    def call(self, arguments: tuple[Any, ...], payload: Payload) -> Any:
        """Opcode REDUCE. Raises:  InvalidArgument."""
        raise InvalidArgument("the pickle calls something that is no function")

    def new(self, arguments: tuple[Any, ...]) -> Any:
        """Opcode NEWOBJ. Raises:  InvalidArgument."""
        raise InvalidArgument("the pickle makes an object of something that is no class")


Globals = Mapping[tuple[str, str], Allowed]
"""By module and name."""


class Payload:
    """The bytes being read, and how many more bytes may be made from them."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(data)
        self.position = 0
        self._num_makeable = 2 * len(data)  # protocol 2 has bytes as text, from which they are made

    def take(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self.view):
            raise InvalidArgument(f"the pickle ends within a value: {end - len(self.view)} bytes more were announced")
        taken = self.view[self.position : end]
        self.position = end
        return taken

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]

    def line(self) -> str:
        """Up to the next newline."""
        end = bytes(self.view[self.position : self.position + 2 * MAX_NAMED]).find(b"\n")
        if end < 0:
            raise InvalidArgument("the pickle has a name without an end")
        return text_of(self.take(end + 1)[:end])

    def make(self, count: int) -> None:
        """Before bytes are copied. Raises:  InvalidArgument: too many for this payload."""
        self._num_makeable -= count
        if self._num_makeable < 0:
            raise InvalidArgument("the pickle makes many more bytes than it has: it is no observation")


class Finisher:
    """Replaces what the allowed globals made by values, in new containers: at most MAX_VALUES, however often the
    payload refers to one and the same.
    """

    def __init__(self) -> None:
        self._num_left = MAX_VALUES
        self._depth = 0

    def finish(self, value: Any) -> Any:
        self._num_left -= 1
        if self._num_left < 0:
            raise InvalidArgument(f"the pickle stands for more than {MAX_VALUES} values: it is no observation")
        if self._depth > MAX_DEPTH:
            raise too_deep()
        self._depth += 1
        finished = self._finished(value)
        self._depth -= 1
        return finished

    def _finished(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return {key: self.finish(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            return kind(self.finish(item) for item in value)
        if kind in _PLAIN:
            return value
        if isinstance(value, Unfinished):
            return value.finished(self.finish)
        raise InvalidArgument("the pickle has a function where data is expected")


_PLAIN = frozenset({type(None), bool, int, float, str, bytes, memoryview})


def too_deep() -> InvalidArgument:
    return InvalidArgument(f"the pickle is nested more than {MAX_DEPTH} deep: it is no observation")


def text_of(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument("the pickle has text that is not UTF-8") from None
