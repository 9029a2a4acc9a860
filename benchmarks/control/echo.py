"""The bare transport: a two-way stream of grpc.aio that answers every message with one of a fixed size, nothing else.

`python -m benchmarks.control.echo BYTES` serves it and prints its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

METHOD = "/bare.Echo/Echo"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Echo:
    """The client's end of one stream."""

    def __init__(self, call: Any, request: bytes, answer_bytes: int) -> None:
        self._call = call
        self._request = request
        self._answer_bytes = answer_bytes

    async def round_trip(self) -> None:
        await self._call.write(self._request)
        answer = await self._call.read()
        assert len(answer) == self._answer_bytes


@contextlib.asynccontextmanager
async def echoing(request: bytes, answer_bytes: int) -> AsyncIterator[Echo]:
    """Start the server in a process of its own and open a stream to it."""
    command = [sys.executable, "-m", "benchmarks.control.echo", str(answer_bytes)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            call: Any = channel.stream_stream(METHOD)()
            try:
                yield Echo(call, request, answer_bytes)
            finally:
                call.cancel()
    finally:
        process.kill()
        await process.wait()


async def _serve(answer_bytes: int) -> None:
    answer = bytes(answer_bytes)

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            await context.write(answer)

    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the client's process ends


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
