"""What LeRobot's RobotClient says: pickles of its classes, made by Python's own pickle, and calls of its four methods."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from benchmarks.dialects.lerobot_classes import (
    LEROBOT_MODULE,
    RemotePolicyConfig,
    TimedAction,
    TimedObservation,
    lerobot_classes,
)
from mstar_rt.protos import lerobot_pb2 as wire

SERVICE = "/transport.AsyncInference/"
TIMEOUT_S = 20
PART_BYTES = 2 << 20


def pickled(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL, module: str = LEROBOT_MODULE) -> bytes:
    with lerobot_classes(module):
        return pickle.dumps(value, protocol)


def unpickled(data: bytes, module: str = LEROBOT_MODULE) -> list[TimedAction]:
    with lerobot_classes(module):
        actions: list[TimedAction] = pickle.loads(data)
    return actions


def parts(data: bytes, size: int = PART_BYTES) -> Iterator[wire.Observation]:
    for start in range(0, len(data), size):
        state = wire.TRANSFER_MIDDLE
        if start + size >= len(data):
            state = wire.TRANSFER_END
        elif start == 0:
            state = wire.TRANSFER_BEGIN
        yield wire.Observation(transfer_state=state, data=data[start : start + size])


class LeRobotClient:
    """One connection. `act` is what RobotClient's two threads do, one after the other."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channel = grpc.insecure_channel(address, options)
        unary, stream = self.channel.unary_unary, self.channel.stream_unary
        to_bytes = lambda message: message.SerializeToString()  # noqa: E731
        self._ready = unary(SERVICE + "Ready", to_bytes, wire.Empty.FromString)
        self._setup = unary(SERVICE + "SendPolicyInstructions", to_bytes, wire.Empty.FromString)
        self._observe = stream(SERVICE + "SendObservations", to_bytes, wire.Empty.FromString)
        self._actions = unary(SERVICE + "GetActions", to_bytes, wire.Actions.FromString)

    def __enter__(self) -> LeRobotClient:
        return self

    def __exit__(self, *_: object) -> None:
        """Its session is over."""
        with suppress(grpc.RpcError):
            self.ready()
        self.channel.close()

    def start(self, config: RemotePolicyConfig, protocol: int = 4) -> None:
        self._ready(wire.Empty(), timeout=TIMEOUT_S)
        self.instruct(pickled(config, protocol))

    def ready(self) -> None:
        self._ready(wire.Empty(), timeout=TIMEOUT_S)

    def instruct(self, data: bytes) -> None:
        self._setup(wire.PolicySetup(data=data), timeout=TIMEOUT_S)

    def observe(self, observation: dict[str, Any], timestep: int = 0, must_go: bool = False, protocol: int = 4) -> None:
        self.send(parts(pickled(TimedObservation(1000.0 + timestep, timestep, observation, must_go), protocol)))

    def send(self, messages: Iterator[wire.Observation]) -> None:
        self._observe(messages, timeout=TIMEOUT_S)

    def send_future(self, messages: Iterator[wire.Observation]) -> Any:
        return self._observe.future(messages, timeout=TIMEOUT_S)

    def poll(self, timeout_s: float | None = TIMEOUT_S) -> bytes:
        data: bytes = self._actions(wire.Empty(), timeout=timeout_s).data
        return data

    def poll_future(self) -> Any:
        """Without a deadline, as RobotClient calls it."""
        return self._actions.future(wire.Empty())

    def actions(self) -> list[TimedAction]:
        data = self.poll()
        while not data:
            data = self.poll()
        return unpickled(data)


def rows(actions: list[TimedAction]) -> np.ndarray:
    return np.stack([each.action.numpy() for each in actions])
