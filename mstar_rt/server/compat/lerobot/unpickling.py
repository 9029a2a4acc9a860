"""An interpreter of the few pickle opcodes that data needs. It imports nothing, looks nothing up and calls nothing but
the functions of the allow-list that it is given; Python's own unpickler is not used.

Protocols 2 to 5. Bytes become views of the payload, so that memory stays within the payload's own size; the number of
operations, of values and their nesting are bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.lerobot.pickle_values import (
    MAX_DEPTH,
    MAX_NAMED,
    Allowed,
    Finisher,
    Globals,
    Payload,
    Unfinished,
    text_of,
    too_deep,
)

MAX_OPERATIONS = 20_000
"""An observation of 30 joints and 4 cameras needs about 400."""
MAX_INTEGER_BYTES = 8


def unpickled(data: bytes, allowed: Globals) -> Any:
    """Raises:  InvalidArgument: a global that is not allowed, an opcode that data does not need, a broken payload."""
    machine = _Machine(Payload(data), allowed)
    return Finisher().finish(machine.run())


class _Machine:
    def __init__(self, payload: Payload, allowed: Globals) -> None:
        self._payload = payload
        self._allowed = allowed
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # one stack per open mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        payload = self._payload
        for _ in range(MAX_OPERATIONS):
            opcode = payload.take(1)[0]
            if opcode == STOP:
                return self._result()
            operation = _OPERATIONS.get(opcode)
            if operation is None:
                raise InvalidArgument(
                    f"the pickle has opcode {bytes((opcode,))!r} at byte {payload.position - 1}, which no observation "
                    "needs: expected plain data, pickled with protocol 2 to 5"
                )
            operation(self)
        raise InvalidArgument(f"the pickle has more than {MAX_OPERATIONS} operations: it is no observation")

    def _result(self) -> Any:
        if len(self._stack) != 1 or self._below:
            raise InvalidArgument("the pickle ends with values left over")
        if self._payload.position != len(self._payload.view):
            raise InvalidArgument(f"{len(self._payload.view) - self._payload.position} bytes follow after the pickle")
        return self._stack[0]

    def _pop(self) -> Any:
        if not self._stack:
            raise InvalidArgument("the pickle takes a value that is not there")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise InvalidArgument(f"the pickle puts items into something that is no {kind.__name__}")
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    # ---- headers and plain values

    def _protocol(self) -> None:
        version = self._payload.take(1)[0]
        if not 2 <= version <= 5:
            raise InvalidArgument(f"the pickle has protocol {version}, expected 2 to 5")

    def _frame(self) -> None:
        """Says how much follows; the values say it themselves."""
        self._payload.number(_U8)

    def _integer(self) -> None:
        size = self._payload.take(1)[0]
        if size > MAX_INTEGER_BYTES:
            raise InvalidArgument(f"the pickle has an integer of {size} bytes, expected at most {MAX_INTEGER_BYTES}")
        self._push(int.from_bytes(self._payload.take(size), "little", signed=True))

    # ---- containers

    def _mark(self) -> None:
        if len(self._below) >= MAX_DEPTH:
            raise too_deep()
        self._below.append(self._stack)
        self._stack = []

    def _to_mark(self) -> list[Any]:
        if not self._below:
            raise InvalidArgument("the pickle closes a container that it has not opened")
        items, self._stack = self._stack, self._below.pop()
        return items

    def _tuple(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        self._push(tuple(reversed(items)))

    def _marked_tuple(self) -> None:
        items = self._to_mark()
        self._push(tuple(items))

    def _append(self) -> None:
        item = self._pop()
        self._top(list).append(item)

    def _appends(self) -> None:
        items = self._to_mark()
        self._top(list).extend(items)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set(self._top(dict), [key, value])

    def _set_items(self) -> None:
        items = self._to_mark()
        self._set(self._top(dict), items)

    def _set(self, target: dict[str, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise InvalidArgument("the pickle has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str:  # the hash of a deeply nested key would recurse in C
                raise InvalidArgument(f"the pickle has a key of type {type(key).__name__}, expected str")
            target[key] = value

    # ---- memo

    def _memoize(self) -> None:
        self._put(len(self._memo))

    def _put(self, index: int) -> None:
        if not self._stack:
            raise InvalidArgument("the pickle takes a value that is not there")
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise InvalidArgument(f"the pickle refers to value {index}, which it has not given")
        self._push(self._memo[index])

    # ---- what is named

    def _global(self) -> None:
        module, name = self._payload.line(), self._payload.line()
        self._push(self._named(module, name))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise InvalidArgument("the pickle names a global by something that is no text")
        self._push(self._named(module, name))

    def _named(self, module: str, name: str) -> Allowed:
        allowed = self._allowed.get((module, name))
        if allowed is None:
            raise InvalidArgument(
                f"the pickle names {f'{module}.{name}'[:MAX_NAMED]!r}, which is not taken: expected LeRobot's own "
                "classes and numpy arrays only; nothing was executed"
            )
        return allowed

    def _reduce(self) -> None:
        arguments, function = self._arguments_and_global()
        self._push(function.call(arguments, self._payload))

    def _new_object(self) -> None:
        arguments, kind = self._arguments_and_global()
        self._push(kind.new(arguments))

    def _arguments_and_global(self) -> tuple[tuple[Any, ...], Allowed]:
        arguments, function = self._pop(), self._pop()
        if type(arguments) is not tuple or not isinstance(function, Allowed):
            raise InvalidArgument("the pickle calls something that is no function")
        return arguments, function

    def _build(self) -> None:
        state = self._pop()
        if not self._stack or not isinstance(self._stack[-1], Unfinished):
            raise InvalidArgument("the pickle gives state to something that has none")
        self._stack[-1].build(state)


_U1, _U2, _U4, _U8 = (struct.Struct(layout) for layout in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_Operation = Callable[[_Machine], None]


def _constant(make: Callable[[], Any]) -> _Operation:
    return lambda machine: machine._push(make())


def _scalar(layout: struct.Struct) -> _Operation:
    return lambda machine: machine._push(machine._payload.number(layout))


def _string(length: struct.Struct) -> _Operation:
    def push(machine: _Machine) -> None:
        raw = machine._payload.take(machine._payload.number(length))
        machine._payload.make(len(raw))
        machine._push(text_of(raw))

    return push


def _bytes(length: struct.Struct) -> _Operation:
    return lambda machine: machine._push(machine._payload.take(machine._payload.number(length)))


def _indexed(act: Callable[[_Machine, int], None], layout: struct.Struct) -> _Operation:
    return lambda machine: act(machine, machine._payload.number(layout))


STOP = ord(".")
_OPERATIONS: dict[int, _Operation] = {
    0x80: _Machine._protocol,
    0x95: _Machine._frame,
    ord("N"): _constant(lambda: None),
    0x88: _constant(lambda: True),
    0x89: _constant(lambda: False),
    ord("J"): _scalar(_I4),
    ord("K"): _scalar(_U1),
    ord("M"): _scalar(_U2),
    0x8A: _Machine._integer,
    ord("G"): _scalar(_F8),
    0x8C: _string(_U1),
    ord("X"): _string(_U4),
    0x8D: _string(_U8),
    ord("C"): _bytes(_U1),
    ord("B"): _bytes(_U4),
    0x8E: _bytes(_U8),
    0x96: _bytes(_U8),
    ord("("): _Machine._mark,
    ord(")"): _constant(tuple),
    0x85: lambda machine: machine._tuple(1),
    0x86: lambda machine: machine._tuple(2),
    0x87: lambda machine: machine._tuple(3),
    ord("t"): _Machine._marked_tuple,
    ord("]"): _constant(list),
    ord("a"): _Machine._append,
    ord("e"): _Machine._appends,
    ord("}"): _constant(dict),
    ord("s"): _Machine._set_item,
    ord("u"): _Machine._set_items,
    ord("q"): _indexed(_Machine._put, _U1),
    ord("r"): _indexed(_Machine._put, _U4),
    0x94: _Machine._memoize,
    ord("h"): _indexed(_Machine._get, _U1),
    ord("j"): _indexed(_Machine._get, _U4),
    ord("c"): _Machine._global,
    0x93: _Machine._stack_global,
    ord("R"): _Machine._reduce,
    0x81: _Machine._new_object,
    ord("b"): _Machine._build,
}
