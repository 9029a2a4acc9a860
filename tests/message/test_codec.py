"""Every record survives the wire, and nothing that arrives can do worse than InvalidArgument."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mstar_rt
from mstar_rt.errors import InvalidArgument
from mstar_rt.message import (
    MAX_MESSAGE_BYTES,
    AskStats,
    Message,
    PeerGone,
    Release,
    Submit,
    TensorRef,
    decode,
    encode,
    requests,
    tokens,
    walks,
)

RECORDS = typing.get_args(Message)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, within what the wire can carry."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case origin if origin is dict:
            return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
        case origin if origin is list:
            return st.lists(values_of(arguments[0]), max_size=3)
        case origin if origin is tuple:
            return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
        case None:
            return PLAIN_VALUES[kind]
    return st.one_of([values_of(argument) for argument in arguments])


PLAIN_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
    type(None): st.none(),
}
MESSAGES = st.sampled_from(RECORDS).flatmap(values_of)


def test_the_union_names_every_tagged_record() -> None:
    tagged = {
        kind
        for module in (requests, tokens, walks)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag
    }
    assert set(RECORDS) == tagged


@pytest.mark.parametrize("record", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_survives_the_wire(record: type) -> None:
    @settings(max_examples=25, deadline=None)
    @given(values_of(record))
    def check(message: Message) -> None:
        assert decode(encode(message)) == message

    check()


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_decoded(data: bytes) -> None:
    refused_or_decoded(data)


@settings(max_examples=600, deadline=None)
@given(MESSAGES, st.data())
def test_mutated_messages_are_refused_or_decoded(message: Message, data: st.DataObject) -> None:
    mutated = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        match data.draw(st.sampled_from(["set", "insert", "cut", "truncate"])):
            case "set":
                mutated[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "insert":
                mutated[at:at] = data.draw(st.binary(max_size=9))
            case "cut":
                del mutated[at : at + data.draw(st.integers(1, 9))]
            case "truncate":
                del mutated[at:]
    refused_or_decoded(bytes(mutated))


def refused_or_decoded(data: bytes) -> None:
    try:
        message = decode(data)
    except InvalidArgument:
        return
    assert isinstance(message, RECORDS)
    # By bytes, because a mutation may have made a NaN, which equals nothing.
    assert encode(decode(encode(message))) == encode(message)


HUGE_COUNT = b"\xdd\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "truncated"),
        (encode(PeerGone("a"))[:-1], "truncated"),
        (encode(PeerGone("a")) + b"\x00", "trailing"),
        (b"\x81\xa4type\xa9Exploding0", "not a message"),
        (b"\x81\xa4type\xa8PeerGone", "missing required field `address`"),
        (b"\x82\xa4type\xa8PeerGone\xa7address\x07", "Expected `str`, got `int`"),
        (b"\x82\xa4type\xa8PeerGone\xa7address\xa2\xff\xfe", "UTF-8"),
        (b"\x83\xa4type\xa7Release\xa6holder\xa1a\xa9block_ids" + HUGE_COUNT, "truncated"),
        (b"\x83\xa4type\xa8PeerGone\xa1x" + b"\x91" * 100_000, "recursion"),
    ],
    ids=["empty", "truncated", "trailing", "unknown", "missing", "type", "utf8", "huge count", "deep"],
)
def test_garbage_is_named(data: bytes, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        decode(data)


def test_size_limit_holds_both_ways() -> None:
    large = TensorRef("uint8", (MAX_MESSAGE_BYTES,), inline=bytes(MAX_MESSAGE_BYTES))
    with pytest.raises(InvalidArgument, match=f"at most {MAX_MESSAGE_BYTES} are allowed: send large tensors"):
        encode(Submit("r", "m", "t", {"x": large}, {}))
    with pytest.raises(InvalidArgument, match=f"at most {MAX_MESSAGE_BYTES} are allowed"):
        decode(bytes(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("message", [AskStats("server", 2**70), PeerGone("\ud800"), Release("a", [-(2**64)])])
def test_what_the_wire_cannot_carry_is_refused(message: Message) -> None:
    with pytest.raises(InvalidArgument, match="cannot be encoded"):
        encode(message)


def test_no_code_on_the_wire() -> None:
    """Formats that run code when read have no place in what reads messages, requests or weights."""
    source = Path(mstar_rt.__file__).parent
    rooms = (source, *(source.parent / room for room in ("policies", "world_models", "generators", "sim_bridge")))
    files = [file for room in rooms for file in room.rglob("*.py")]
    assert len(files) > 300
    code = re.compile(r"import pickle|recv_pyobj|send_pyobj|import marshal|(?<![.\w])(eval|exec)\(|weights_only=False")
    for file in files:
        found = code.search(file.read_text())
        assert not found, f"{file} uses {found[0]}"
