"""Checks of arguments that do not become tensors: each is right, or refused in one sentence."""

from __future__ import annotations

import math
import reprlib

import numpy as np

from mstar_rt.errors import InvalidArgument

MAX_BUDGET_MS = 1e9
MAX_TIMEOUT_S = 1e6
MAX_COUNT = 2**32 - 1
MAX_WHOLE = 2**64 - 1
MAX_SHOWN = 64
"""Characters of what a caller gave that a sentence repeats."""


def shown(value: object) -> str:
    """In a sentence: one line, not too long."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {list(value.shape)}"
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]!r} ..."
    text = " ".join(reprlib.repr(value).split())  # a value may be long, and its repr has lines
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def text(name: str, value: object) -> str:
    """Raises:  InvalidArgument: not a str, or one that UTF-8 cannot hold."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise InvalidArgument(f"{name} is {shown(value)}, expected text")


def budget_ms(value: object) -> float | None:
    """Raises:  InvalidArgument: neither None nor a positive number of at most 1e9."""
    if value is None:
        return None
    if not _is_number(value) or not 0 < value <= MAX_BUDGET_MS:  # type: ignore[operator]
        raise InvalidArgument(
            f"budget_ms is {shown(value)}, expected a positive number of milliseconds, at most {MAX_BUDGET_MS:.0f}"
        )
    return float(value)  # type: ignore[arg-type]


def timeout_s(value: object) -> float | None:
    """Raises:  InvalidArgument: neither None nor a number from 0 to 1e6."""
    return None if value is None else waiting_s(value)


def waiting_s(value: object, name: str = "timeout_s") -> float:
    """Raises:  InvalidArgument: not a number from 0 to 1e6."""
    if not _is_number(value) or not 0 <= value <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise InvalidArgument(f"{name} is {shown(value)}, expected a number of seconds from 0 to {MAX_TIMEOUT_S:.0f}")
    return float(value)  # type: ignore[arg-type]


def count(name: str, value: object) -> int | None:
    """Raises:  InvalidArgument: neither None nor a whole number from 1 to 2^32 - 1."""
    if value is None:
        return None
    if not _is_whole(value) or not 1 <= value <= MAX_COUNT:  # type: ignore[operator]
        raise InvalidArgument(f"{name} is {shown(value)}, expected a whole number from 1")
    return int(value)  # type: ignore[call-overload]


def whole_from_0(name: str, value: object) -> int:
    """Raises:  InvalidArgument: not a whole number from 0 to 2^64 - 1."""
    if not _is_whole(value) or not 0 <= value <= MAX_WHOLE:  # type: ignore[operator]
        raise InvalidArgument(f"{name} is {shown(value)}, expected a whole number from 0 to {MAX_WHOLE}")
    return int(value)  # type: ignore[call-overload]


def finite(name: str, value: object) -> float:
    """Raises:  InvalidArgument: not a finite number."""
    if not _is_number(value) or not -math.inf < value < math.inf:  # type: ignore[operator]
        raise InvalidArgument(f"{name} is {shown(value)}, expected a number")
    return float(value)  # type: ignore[arg-type]


def positive(name: str, value: object, at_most: float) -> float:
    """Raises:  InvalidArgument: not a number above 0, at most `at_most`."""
    if not _is_number(value) or not 0 < value <= at_most:  # type: ignore[operator]
        raise InvalidArgument(f"{name} is {shown(value)}, expected a positive number, at most {at_most:g}")
    return float(value)  # type: ignore[arg-type]


def whole(value: object, least: int, most: int) -> int:
    """Raises:  TypeError, ValueError: not a whole number, not one from `least` to `most`; it says what is expected."""
    if not _is_whole(value):
        raise TypeError("a whole number is expected")
    if not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"a whole number from {least} to {most} is expected")
    return int(value)  # type: ignore[call-overload]


def number(value: object) -> float:
    """Raises:  TypeError: not a number, whose sentence says what is expected."""
    if not _is_number(value):
        raise TypeError("a number is expected")
    return float(value)  # type: ignore[arg-type]


def address(value: object) -> str:
    """Raises:  InvalidArgument: not "host:port" with a port from 1 to 65535; an IPv6 host needs brackets."""
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        plain = bool(host) and (bracketed or not set(host) & set(":/[]"))
        if plain and host.isprintable() and " " not in host and _is_port(port):
            return value
    raise InvalidArgument(f'the address is {shown(value)}, expected "host:port" with a port from 1 to 65535')


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
