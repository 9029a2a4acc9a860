"""One planner's stream as a test says and hears it."""

from __future__ import annotations

import queue
from typing import Any

import grpc
import numpy as np
import pytest
from toy_runtime import SIZE

from mstar_rt.protos import tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array


def frames(value: int = 0, size: int = SIZE) -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=tensor_from_array(np.full((1, size, size, 3), value, np.uint8)))


def view(value: int = 0, size: int = SIZE) -> wire.Context:
    return wire.Context(frames=frames(value, size), state=tensor_from_array(np.zeros(7, np.float32)))


class Stream:
    """The client's end: `say` sends a message, `hear` takes the next answer of the server."""

    def __init__(self, world_model: Any) -> None:
        self._outgoing: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
        self.call = world_model.Session(iter(self._outgoing.get, None), timeout=30)
        self._last_id = 0

    def say(self, message_id: int | None = None, **command: Any) -> int:
        self._last_id = self._last_id + 1 if message_id is None else message_id
        self._outgoing.put(wire.SessionRequest(message_id=self._last_id, **command))
        return self._last_id

    def hear(self) -> tuple[int, str, Any]:
        answer = next(self.call)
        kind = answer.WhichOneof("answer")
        return answer.answers, kind, getattr(answer, kind)

    def stop_sending(self) -> None:
        self._outgoing.put(None)

    def ends_with(self) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as failure:
            next(self.call)
        return failure.value
