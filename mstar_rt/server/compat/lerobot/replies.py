"""The answer as RobotClient unpickles it: list[TimedAction], its opcodes written by hand.

The client's own classes and torch.tensor are named, as its own server's pickles do; nothing of them is imported here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

PROTOCOL_2 = b"\x80\x02"
MARK, STOP = b"(", b"."
EMPTY_LIST, EMPTY_TUPLE, EMPTY_DICT = b"]", b")", b"}"
APPENDS, SETITEMS, TUPLE1 = b"e", b"u", b"\x85"
NEWOBJ, BUILD, REDUCE = b"\x81", b"b", b"R"

_CLASS, _TENSOR, _TIMESTAMP, _TIMESTEP, _ACTION = range(5)
"""Places in the memo."""


def timed_actions(actions: np.ndarray, module: str, timestep: int, timestamp: float, period_s: float) -> bytes:
    """Row i of `actions` [n, A] float32 is for `timestep` + i, at `timestamp` + i * `period_s` of the client's clock.

    `module` is where the client has its classes.
    """
    parts = [PROTOCOL_2, EMPTY_LIST, *_names(module), MARK]
    for i, row in enumerate(actions):
        parts.append(_get(_CLASS) + EMPTY_TUPLE + NEWOBJ + EMPTY_DICT + MARK)
        parts.append(_get(_TIMESTAMP) + _float(timestamp + i * period_s))
        parts.append(_get(_TIMESTEP) + _integer(timestep + i))
        parts.append(_get(_ACTION) + _tensor(row.tolist()))
        parts.append(SETITEMS + BUILD)
    return b"".join((*parts, APPENDS, STOP))


def _names(module: str) -> Iterable[bytes]:
    """Into the memo, and off the stack again."""
    yield f"c{module}\nTimedAction\n".encode() + _put(_CLASS)
    yield b"ctorch\ntensor\n" + _put(_TENSOR)
    for place, name in ((_TIMESTAMP, "timestamp"), (_TIMESTEP, "timestep"), (_ACTION, "action")):
        yield b"X" + struct.pack("<I", len(name)) + name.encode() + _put(place)


def _tensor(values: list[float]) -> bytes:
    """torch.tensor([...]): float32, the client's default, to which every float32 comes back exactly."""
    return _get(_TENSOR) + EMPTY_LIST + MARK + b"".join(map(_float, values)) + APPENDS + TUPLE1 + REDUCE


def _float(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def _integer(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def _put(place: int) -> bytes:
    """Memoise what is on top, and drop it."""
    return b"q" + bytes((place,)) + b"0"


def _get(place: int) -> bytes:
    return b"h" + bytes((place,))
