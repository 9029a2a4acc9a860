"""10,000 broken messages to each decoder with its mapping: each is taken or refused in a sentence, and never anything
else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "models")]

import gr00t_client
from fuzzing import NUM_MESSAGES, mutated, outcomes
from openpi_client import dialect, observation, packed
from toy_policy import toy_policy

from mstar_rt.server.compat.gr00t import codec as gr00t_codec
from mstar_rt.server.compat.mapping import Mapping
from mstar_rt.server.compat.openpi.codec import OpenpiCodec

SCALAR = {b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f8"}
OPENPI = [
    msgspec.msgpack.encode(packed(observation()) | changes)
    for changes in ({}, {"observation/state": [1, -5.5, 2**40]}, {"observation/state": SCALAR}, {"prompt": "x" * 300})
]
GR00T = [
    msgspec.msgpack.encode(message, enc_hook=gr00t_client.packable)
    for message in (gr00t_client.observation(), {"state.arm": np.zeros((1, 1, 2)), "language.task": ["go"]})
]


def broken(like: list[bytes], seed: int) -> Iterator[bytes]:
    """Images are cut out of most, so that what is changed is what is read."""
    rng = random.Random(seed)
    short = [message.replace(bytes(16 * 16 * 3), b"") for message in like] + like
    return (mutated(rng.choice(short), rng, short) for _ in range(NUM_MESSAGES))


@pytest.mark.parametrize(
    ("block", "unpack", "like"), [({}, OpenpiCodec().unpack, OPENPI), (gr00t_client.BLOCK, gr00t_codec.unpack, GR00T)]
)
async def test_broken_messages_are_taken_or_refused(
    block: dict[str, Any], unpack: Callable[[bytes], Any], like: list[bytes]
) -> None:
    mapping = Mapping(dialect(**block), toy_policy())

    async def decode(data: bytes) -> None:
        message = unpack(data)
        if isinstance(message, dict):
            mapping.observation(message)

    found = await outcomes(broken(like, 7), decode)
    assert found.total() == NUM_MESSAGES
    assert found["INVALID_ARGUMENT"] > 5_000, found
    assert found["taken"] > 100, found
