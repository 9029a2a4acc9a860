"""What GR00T's client does on the wire."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import zmq
from openpi_client import SIZE, address_of, dialect
from toy_runtime import ToyRuntime

from mstar_rt.config_dialects import DialectConfig

BLOCK: dict[str, Any] = {
    "kind": "gr00t", "cameras": {"top": {"key": "video.ego"}}, "state": [{"key": "state.arm", "size": 2}, {"key": "state.hand", "size": 1}],
    "instruction": {"key": "language.task"}, "actions": {"split": {"arm": 1, "hand": 1}},
}  # fmt: skip


def gr00t(**changes: Any) -> DialectConfig:
    return dialect(**(BLOCK | changes))


def packable(value: Any) -> Any:
    file = io.BytesIO()
    np.save(file, value)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def revived(value: Any) -> Any:
    if isinstance(value, dict) and "__ndarray_class__" in value:
        return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
    if isinstance(value, dict):
        return {key: revived(item) for key, item in value.items()}
    return [revived(item) for item in value] if isinstance(value, list) else value


def observation(value: int = 0) -> dict[str, Any]:
    return {
        "video": {"ego": np.full((1, 1, SIZE, SIZE, 3), value, np.uint8)},
        "state": {"arm": np.full((1, 1, 2), value, np.float32), "hand": np.zeros((1, 1, 1), np.float32)},
        "language": {"task": [["go"]]},
    }


class Client:
    def __init__(self, runtime: ToyRuntime, **fields: Any) -> None:
        self._fields = fields
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.REQ)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self.socket.connect(address_of(runtime))

    def send(self, endpoint: str, data: Any = None) -> None:
        request = {"endpoint": endpoint} | ({} if data is None else {"data": data}) | self._fields
        self.socket.send(msgspec.msgpack.encode(request, enc_hook=packable))

    def hear(self) -> Any:
        answer = revived(msgspec.msgpack.decode(self.socket.recv()))
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def call(self, endpoint: str, data: Any = None) -> Any:
        self.send(endpoint, data)
        return self.hear()

    def get_action(self, value: int = 0) -> Any:
        return self.call("get_action", {"observation": observation(value), "options": None})

    def close(self) -> None:
        self.socket.close()
        self._context.term()
