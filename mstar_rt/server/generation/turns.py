"""Turns of a GenerateRequest to messages and an image."""

from __future__ import annotations

from collections.abc import Sequence

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.server.generation.requests import only_image

ROLES = {
    wire.Turn.ROLE_SYSTEM: "system",
    wire.Turn.ROLE_USER: "user",
    wire.Turn.ROLE_ASSISTANT: "assistant",
}

Read = tuple[list[tuple[str, str]], tensor_pb2.Image | None]
"""(role, content) of each turn, and the image that one of them has, as it came."""


def read_turns(turns: Sequence[wire.Turn]) -> Read:
    """Texts of one turn belong together.

    Raises:  InvalidArgument: an unknown role, a part that no task takes, more than one image or one in the wrong place.
    """
    messages, images = [], []
    for index, turn in enumerate(turns):
        where = f"turn {index}"
        if turn.role not in ROLES:
            raise InvalidArgument(f"{where} has the role {turn.role}, expected one of {', '.join(ROLES.values())}")
        for part in turn.parts:
            kind = part.WhichOneof("content")
            if kind == "image":
                images.append((index, part.image))
            elif kind != "text":
                has = "an empty part" if kind is None else f"a part of {kind}"
                raise InvalidArgument(f"{where} has {has}, expected text or an image")
        messages.append((ROLES[turn.role], "".join(part.text for part in turn.parts)))
    return messages, only_image(messages, images)
