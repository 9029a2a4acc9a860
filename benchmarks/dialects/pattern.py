"""The pattern of openpi's server: one asyncio loop that accepts, reads, infers and writes.

`python -m benchmarks.dialects.pattern MODEL` serves it and prints its port; it ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from benchmarks.control import WEIGHTS
from benchmarks.dialects import NOOP, POLICY, SLOW, SLOW_MS
from benchmarks.dialects.openpi import packed, unpacked
from benchmarks.noop.policy import ACTION, HORIZON
from mstar_rt.config import worker_environment

Infer = Callable[[dict[str, Any]], np.ndarray]
THREADS = 1


@contextlib.asynccontextmanager
async def pattern_served(model: str) -> AsyncIterator[int]:
    """The server in a process of its own, with the environment and the threads of a worker of ours; yields its port."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.dialects.pattern", model, stdin=pipe, stdout=pipe,
        env={**os.environ, **worker_environment(THREADS)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def _policy(model: str) -> Infer:
    if model == POLICY:
        return _shipped()
    zeros, hold_s = np.zeros((HORIZON, ACTION), np.float32), SLOW_MS / 1e3 if model == SLOW else 0.0

    def stand_still(observation: dict[str, Any]) -> np.ndarray:
        if hold_s:
            time.sleep(hold_s)
        return zeros

    return stand_still


def _shipped() -> Infer:
    import torch

    from policies.pi05.train.in_process import InProcessPolicy

    torch.set_num_threads(THREADS)
    policy = InProcessPolicy.load(WEIGHTS.parent)

    def infer(seen: dict[str, Any]) -> np.ndarray:
        images = {name: np.array(seen[f"observation/{name}"]) for name in ("top", "wrist")}
        observation = {"images": images, "state": np.array(seen["observation/state"])}
        return policy.chunks([observation], [seen["prompt"]])[0]

    return infer


async def _serve(model: str) -> None:
    infer = _policy(model)

    async def converse(connection: ServerConnection) -> None:
        await connection.send(packed({}))
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = await connection.recv()
                assert isinstance(message, bytes)
                start_s = time.monotonic()
                actions = infer(unpacked(message))
                took_ms = (time.monotonic() - start_s) * 1e3
                await connection.send(packed({"actions": actions, "server_timing": {"infer_ms": took_ms}}))

    async with serve(converse, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    assert sys.argv[1] in (NOOP, SLOW, POLICY)
    asyncio.run(_serve(sys.argv[1]))
