"""A longer way back: all that a server says arrives later, as if the network or the model took that much more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType

from mstar_rt.errors import InvalidArgument

_READ_BYTES = 1 << 16


class DelayedLink:
    """A TCP relay to `target` ("host:port"), on loopback; `address` is what a client connects to instead. To be used in
    `async with`.

    What the client sends goes through at once. What the server sends is held for `answer_delay_s` and arrives in order;
    the next bytes do not wait for those before them, so the delay costs no throughput.
    """

    def __init__(self, target: str, answer_delay_s: float) -> None:
        if not answer_delay_s >= 0:
            raise InvalidArgument(f"answer_delay_s is {answer_delay_s}, expected 0 or more seconds")
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._answer_delay_s = answer_delay_s
        self._relays: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> DelayedLink:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    @property
    def address(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def _accepted(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        relay = asyncio.get_running_loop().create_task(self._relay(near_in, near_out))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                far_in, far_out = await asyncio.open_connection(self._host, self._port)
                try:
                    await _until_one_ends(
                        _forward(near_in, far_out), _forward_later(far_in, near_out, self._answer_delay_s)
                    )
                finally:
                    far_out.close()
            finally:
                near_out.close()


async def _until_one_ends(*directions: object) -> None:
    """A connection of which one direction has ended is of no use to gRPC."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_READ_BYTES):
        sink.write(data)
        await sink.drain()


async def _forward_later(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due_s, data = await on_its_way.get()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if not data:
                return
            sink.write(data)
            await sink.drain()

    async def take() -> None:
        data = b"."
        while data:
            data = await source.read(_READ_BYTES)
            on_its_way.put_nowait((time.monotonic() + delay_s, data))

    async with asyncio.TaskGroup() as both:
        both.create_task(take())
        both.create_task(deliver())
