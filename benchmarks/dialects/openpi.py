"""The client's end of openpi's protocol, on asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect


def packed(message: Mapping[str, Any]) -> bytes:
    return msgspec.msgpack.encode({key: _packed(value) for key, value in message.items()})


def unpacked(data: bytes) -> Any:
    return _revived(msgspec.msgpack.decode(data))


class OpenpiClient:
    """In `async with`, which ends with the server's first message."""

    def __init__(self, port: int) -> None:
        self._opening = connect(
            f"ws://127.0.0.1:{port}", compression=None, max_size=None, open_timeout=60, ping_interval=None
        )
        self._connection: ClientConnection

    async def __aenter__(self) -> OpenpiClient:
        self._connection = await self._opening.__aenter__()
        await self._connection.recv()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._opening.__aexit__(*error)

    async def infer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        await self._connection.send(packed(message))
        answer = await self._connection.recv()
        assert isinstance(answer, bytes), f"the server has failed: {answer}"
        revived: dict[str, Any] = unpacked(answer)
        return revived


def _packed(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _revived(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if b"__ndarray__" in value:
        return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
    return {key: _revived(item) for key, item in value.items()}
