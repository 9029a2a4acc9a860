"""The JSON object of a request, read strictly: what nothing has taken is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mstar_rt.errors import InvalidArgument, nearest
from mstar_rt.server.gateway.errors import FieldError

LARGEST = 2**63 - 1
"""Of whole numbers, which may have any length in JSON."""
DATA_URL, LONG_URL_BYTES = b"data:", 1024
MAX_SHOWN = 64
"""Characters of what a client wrote that a sentence repeats."""


def without_data_urls(body: bytes) -> bytes:
    """`body` with the long data: URLs in its texts cut off, and all names as they are."""
    if DATA_URL not in body:
        return body
    # Between two quotes without a backslash before the second is a whole text, or what cannot begin with a letter d.
    return b'"'.join(
        DATA_URL if len(part) > LONG_URL_BYTES and part.startswith(DATA_URL) and not part.endswith(b"\\") else part
        for part in body.split(b'"')
    )


def parsed(body: bytes, without_urls: bytes) -> Any:
    """`without_urls`: of `body`, see `without_data_urls`.

    Raises:  InvalidArgument: it is no JSON.  FieldError: an object in it has a name twice.
    """
    try:
        value = msgspec.json.decode(body)
        # msgspec takes the last of several without a word. This looks at names only, and twice as long.
        json.loads(without_urls, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except (msgspec.DecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is no JSON: {error}") from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise FieldError(name[:MAX_SHOWN], f"the body has {name[:MAX_SHOWN]!r} more than once, expected it once")
        names.add(name)


class Fields:
    """A field that is null was not given. `path` is where the object is in the request."""

    def __init__(self, data: Any, path: str = "") -> None:
        self._path = path
        if not isinstance(data, dict):
            message = f"{path or 'the body'} is {_shown(data)}, expected a JSON object"
            raise FieldError(path, message) if path else InvalidArgument(message)
        self._left: dict[str, Any] = {name: value for name, value in data.items() if value is not None}

    def path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def any(self, name: str) -> Any:
        """None: it was not given."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        return self._of(name, str, "text")

    def flag(self, name: str) -> bool | None:
        return self._of(name, bool, "true or false")

    def integer(self, name: str, least: int = -LARGEST) -> int | None:
        return self._in_range(name, self._of(name, int, "a whole number"), least)

    def number(self, name: str) -> float | None:
        return self._in_range(name, self._of(name, (int, float), "a number"), -LARGEST)

    def numbers(self, name: str) -> list[float] | None:
        value = self._of(name, list, "a list of numbers")
        if value is None:
            return None
        for each in value:
            if not isinstance(each, (int, float)) or isinstance(each, bool) or abs(each) > LARGEST:
                raise self.error(name, f"is {_shown(value)}, expected a list of numbers")
        return [float(each) for each in value]

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.error(name, f"is {_shown(value)}, expected one of {', '.join(choices)}")
        return value

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self.error(name, "is missing, expected text")
        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects that has to be there."""
        value = self.any(name)
        if not isinstance(value, list):
            raise self.error(name, "is missing" if value is None else f"is {_shown(value)}, expected a list")
        return [Fields(each, f"{self.path_of(name)}[{index}]") for index, each in enumerate(value)]

    def without_effect(self, usual: Mapping[str, Sequence[Any]]) -> None:
        """Fields that this server does not serve: given as one of these values they change nothing, and are let in."""
        for name, values in usual.items():
            given = self.any(name)
            if given is not None and not any(given == value and type(given) is type(value) for value in values):
                instead = f", or give {_shown(values[0])}" if values else ""
                raise self.error(name, f"is {_shown(given)}, which this server does not serve: leave it out{instead}")

    def refuse_rest(self, known: Collection[str]) -> None:
        """`known` are all names that this object may have."""
        for name in self._left:
            raise self.error(name, f"is not known here, {nearest(name, known)}")

    def error(self, name: str, what: str) -> FieldError:
        return FieldError(self.path_of(name), f"{self.path_of(name)} {what}")

    def _of(self, name: str, kind: Any, expected: str) -> Any:
        value = self.any(name)
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise self.error(name, f"is {_shown(value)}, expected {expected}")
        return value

    def _in_range(self, name: str, value: Any, least: int) -> Any:
        if isinstance(value, int) and not least <= value <= LARGEST:
            raise self.error(name, f"is {_shown(value)}, expected {least} to {LARGEST}")
        return value


class FormFields(Fields):
    """Those of a form, where everything but a file is text: numbers and flags are what JSON would read there."""

    def _of(self, name: str, kind: Any, expected: str) -> Any:
        value = self.any(name)
        if isinstance(value, str) and kind is not str:
            value = _read(value)
        if value is not None:
            self._left[name] = value
        return super()._of(name, kind, expected)

    def numbers(self, name: str) -> list[float] | None:
        value = self.any(name)
        if isinstance(value, list):
            value = [_read(each) for each in value]
        if value is not None:
            self._left[name] = value
        return super().numbers(name)


def _read(text: str) -> Any:
    """The text itself where JSON would not read any value."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _shown(value: Any) -> str:
    """As JSON, not too long."""
    if isinstance(value, bytes):
        return f"a file of {len(value)} bytes"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:60]} ..."
