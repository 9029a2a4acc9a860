"""What openpi's client does on the wire, and a server for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import numpy as np
from control_stream import policy_runtime
from toy_runtime import ToyRuntime
from websockets.sync.client import ClientConnection, connect

from mstar_rt.config import parse_deployment
from mstar_rt.config_dialects import DialectConfig
from mstar_rt.server.edge import EdgeConfig

SIZE = 16
MAX_MESSAGE_BYTES = 1 << 20
BLOCK: dict[str, Any] = {
    "kind": "openpi", "model": "toy", "port": 0, "control_hz": 20, "execute": 4,
    "cameras": {"top": {"key": "observation/image"}}, "mask": ["wrist"],
    "state": [{"key": "observation/state", "size": 3}],
    "instruction": {"key": "prompt"}, "options": {"normalization": "lab"},
}  # fmt: skip


def dialect(**changes: Any) -> DialectConfig:
    models = [{"name": "toy", "family": "toy_policy:declare"}]
    return parse_deployment({"name": "test", "models": models, "dialects": [BLOCK | changes]}).dialects[0]


@contextmanager
def served(*dialects: DialectConfig, serving: bool = True, **edge: Any) -> Iterator[ToyRuntime]:
    config = EdgeConfig(port=0, max_message_bytes=MAX_MESSAGE_BYTES, dialects=dialects or (dialect(),), **edge)
    with policy_runtime(config=config, serving=serving) as runtime:
        if serving:
            for listener in runtime.edge.dialects.listeners:
                runtime.run(listener.listening.wait())
        yield runtime


def address_of(runtime: ToyRuntime, index: int = 0) -> str:
    return runtime.edge.dialects.listeners[index].address


def packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {key: packed(item) for key, item in value.items()} if isinstance(value, dict) else value


def unpacked(data: bytes) -> Any:
    return _revived(msgspec.msgpack.decode(data))


def _revived(value: Any) -> Any:
    if isinstance(value, dict) and b"__ndarray__" in value:
        return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
    return {key: _revived(item) for key, item in value.items()} if isinstance(value, dict) else value


def observation(value: int = 0, **changes: Any) -> dict[str, Any]:
    image = np.full((SIZE, SIZE, 3), value, np.uint8)
    return {"observation/image": image, "observation/state": np.full(3, value, np.float64), "prompt": "go"} | changes


class OpenpiClient:
    """`infer` raises RuntimeError on a text, as openpi's does."""

    def __init__(self, address: str, **options: Any) -> None:
        self._opening = connect(address, compression=None, max_size=None, **options)
        self.connection: ClientConnection = self._opening.__enter__()
        self.metadata = unpacked(self.connection.recv())  # type: ignore[arg-type]

    def infer(self, message: Any) -> Any:
        self.send(message)
        return self.answer()

    def send(self, message: Any) -> None:
        self.connection.send(msgspec.msgpack.encode(packed(message)))

    def answer(self) -> Any:
        answer = self.connection.recv(timeout=10)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return unpacked(answer)

    def __enter__(self) -> OpenpiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
