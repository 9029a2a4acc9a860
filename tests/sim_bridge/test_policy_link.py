"""What a server says arrives later, in order, and no slower."""

from __future__ import annotations

import asyncio
import time

import pytest

from mstar_rt.errors import InvalidArgument
from sim_bridge.delayed_link import DelayedLink

DELAY_S = 0.08
NUM_MESSAGES = 40


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


async def _round_trips(delay_s: float) -> tuple[list[float], bytes]:
    """Seconds until each answer of messages that are sent without waiting, and all answers."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with DelayedLink(f"{host}:{port}", delay_s) as link:
        own_host, _, own_port = link.address.rpartition(":")
        reader, writer = await asyncio.open_connection(own_host, int(own_port))
        start_s = time.monotonic()
        for number in range(NUM_MESSAGES):
            writer.write(b"%04d" % number)
            await writer.drain()
        arrived_s, answers = [], b""
        for _ in range(NUM_MESSAGES):
            answers += await reader.readexactly(4)
            arrived_s.append(time.monotonic() - start_s)
        writer.close()
        assert await reader.read() == b""
    server.close()
    return arrived_s, answers


def test_answers_are_late_together_not_one_after_the_other() -> None:
    arrived_s, answers = asyncio.run(_round_trips(DELAY_S))
    assert answers == b"".join(b"%04d" % number for number in range(NUM_MESSAGES))
    assert arrived_s[0] >= DELAY_S
    assert arrived_s[-1] < DELAY_S * NUM_MESSAGES / 2


def test_a_server_that_is_gone_ends_the_connection() -> None:
    async def connect() -> bytes:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        server.close()
        await server.wait_closed()
        async with DelayedLink(f"{host}:{port}", 0.0) as link:
            own_host, _, own_port = link.address.rpartition(":")
            reader, writer = await asyncio.open_connection(own_host, int(own_port))
            data = await reader.read()
            writer.close()
            return data

    assert asyncio.run(connect()) == b""


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(InvalidArgument, match="0 or more seconds"):
        DelayedLink("127.0.0.1:1", -0.1)
