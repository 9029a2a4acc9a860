"""Records to bytes and back: msgpack, one tagged union, nothing that can run code."""

from __future__ import annotations

import msgspec

from mstar_rt.errors import InvalidArgument
from mstar_rt.message.records import Message

MAX_MESSAGE_BYTES = 4 << 20
"""Tensors over 16 kB travel through the tensor plane, so even a message with 200 inline tensors stays under
this.
"""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of one record.

    Raises:  InvalidArgument: the record is larger than MAX_MESSAGE_BYTES, or holds a value msgpack cannot (an
             integer outside 64 bits, text with lone surrogates).
    """
    try:
        data = _encoder.encode(message)
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"a {type(message).__name__} message cannot be encoded: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"a {type(message).__name__} message takes {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are "
            "allowed: send large tensors through the tensor plane"
        )
    return data


def decode(data: bytes | memoryview) -> Message:
    """The record that `data` holds, its field types checked.

    Raises:  InvalidArgument: not msgpack, an unknown record, a missing field, a field of another type,
             trailing bytes, or more than MAX_MESSAGE_BYTES. Nothing else is raised, whatever the bytes.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidArgument(f"a message of {len(data)} bytes arrived, at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise InvalidArgument(f"{len(data)} bytes are not a message of this version: {error}") from error
