"""Messages that nobody would send: those of a working client with bytes or fields changed, the same ones for a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mstar_rt.errors import MAX_SENTENCE, MstarError, sentence

NUM_MESSAGES = 10_000
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, 3.5e38, float("nan"), float("inf"), float("-inf"))
WHOLE = (0, 1, 2, 3, 7, 8, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
TEXTS = ("", " ", "toy", "top", "wrist", "state", "act", "\0", "é" * 100, "x" * 3000, "../../etc/passwd", "{}", "%s")
LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1), FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One to four changes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randint(1, 12))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 12)]
        elif kind == 3:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            changed[at:at] = other[begin : begin + rng.randint(1, 40)]
        elif at < len(changed):
            changed[at] = rng.randrange(256) if kind == 4 else changed[at] ^ (1 << rng.randrange(8))
    return bytes(changed)


def fuzzed(like: Sequence[Message], seed: int, count: int = NUM_MESSAGES) -> Iterator[bytes]:
    """Half have wrong bytes, half wrong fields; some are noise."""
    rng = random.Random(seed)
    encoded = [message.SerializeToString() for message in like]
    kind = type(like[0])
    for number in range(count):
        if number % 50 == 0:
            yield rng.randbytes(rng.randrange(200))
        elif number % 2:
            yield mutated(rng.choice(encoded), rng, encoded)
        else:
            message = kind.FromString(rng.choice(encoded))
            for _ in range(rng.randint(1, 3)):
                _change(message, rng)
            yield message.SerializeToString()


def _change(message: Message, rng: random.Random) -> None:
    """Some field of the message, or of one inside it."""
    while True:
        fields: Sequence[Any] = message.DESCRIPTOR.fields
        if not fields:
            return
        field = rng.choice(fields)
        inside = [value for each, value in message.ListFields() if _is_plain_message(each)]
        if not inside or rng.random() < 0.4:
            break
        message = rng.choice(inside)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(getattr(message, field.name), field.message_type.fields_by_name["value"], rng)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, rng)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value(field, rng))


def _is_plain_message(field: Any) -> bool:
    return field.message_type is not None and not field.is_repeated


def _change_map(entries: Any, value: Any, rng: random.Random) -> None:
    key = rng.choice([*entries, rng.choice(TEXTS)])
    if value.message_type is not None:
        _change(entries[key], rng)
    else:
        entries[key] = _value(value, rng)


def _change_list(values: Any, field: Any, rng: random.Random) -> None:
    if values and rng.random() < 0.3:
        del values[-1]
    elif field.message_type is not None:
        _change(values.add(), rng)
    else:
        values.extend(_value(field, rng) for _ in range(rng.choice((1, 1, 2, 12))))


def _value(field: Any, rng: random.Random) -> Any:
    if field.cpp_type in LIMITS:
        least, most = LIMITS[field.cpp_type]
        return min(max(rng.choice(WHOLE), least), most)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(NUMBERS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 16, 28, 100)))
    return rng.choice(TEXTS)


async def outcomes(messages: Iterator[bytes], decode: Callable[[bytes], Awaitable[None]]) -> Counter[str]:
    """How often they were taken or refused, by code. Anything but a refusal in a sentence that fits every wire fails the
    test, with the message that did it."""
    found: Counter[str] = Counter()
    for data in messages:
        try:
            await decode(data)
            found["taken"] += 1
        except DecodeError:
            found["no message"] += 1
        except MstarError as error:
            found[error.code] += 1
            found["too long"] += not 0 < len(sentence(error)) <= MAX_SENTENCE + 5
        except Exception as bug:
            raise AssertionError(f"{type(bug).__name__} {bug} on {data!r}") from bug
    assert not found.pop("too long", 0)
    return found
