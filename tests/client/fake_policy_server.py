"""A scripted server of one policy: the test plays the policy, one message at a time. And a TCP proxy that can stop forwarding."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2_grpc

from mstar_rt.protos import control_pb2, control_pb2_grpc, request_pb2, runtime_pb2, runtime_pb2_grpc, tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor, tensor_from_array

WAIT_S = 10.0
SIZE = 8
ACTION_SIZE = 2
HORIZON = 8


def policy_schema(**changes: Any) -> control_pb2.PolicySchema:
    """Two cameras, of which the wrist's may be masked, a state of 3 numbers, actions of 2, 8 per chunk."""
    schema = control_pb2.RobotSchema(
        cameras=[
            control_pb2.CameraSchema(name="top", height=SIZE, width=SIZE),
            control_pb2.CameraSchema(name="wrist", height=SIZE, width=SIZE, may_be_masked=True),
        ],
        state=control_pb2.VectorSchema(size=3, names=["x", "y", "grip"], units=["m", "m", ""]),
        action=control_pb2.VectorSchema(size=ACTION_SIZE, names=["x", "y"], units=["m", "m"]),
    )
    mode = control_pb2.RealTimeChunking
    policy = control_pb2.PolicySchema(
        schema=schema, action_horizon=HORIZON, takes_instruction=True, num_observations=1,
        chunking=mode.Mode.values()[1:], max_prefix_delay=4, anytime=True,
    )  # fmt: skip
    for name, value in changes.items():
        if value is None:
            policy.ClearField(name)
        elif isinstance(value, list):
            policy.ClearField(name)
            getattr(policy, name).extend(value)
        else:
            setattr(policy, name, value)
    return policy


def rows(first: float, num: int = HORIZON, step: float = 1.0) -> np.ndarray:
    """Actions whose numbers tell which they are: first, first + step, ..."""
    return np.repeat(np.arange(num, dtype=np.float32)[:, None] * step + first, ACTION_SIZE, axis=1)


class FakeStream:
    """One Robot.Control stream as the server sees it."""

    def __init__(self, opening: control_pb2.OpenControl, number: int) -> None:
        self.opening = opening
        self.number = number
        self.incoming: queue.Queue[control_pb2.ControlRequest | None] = queue.Queue()
        self.outgoing: queue.Queue[control_pb2.ControlResponse | Exception | None] = queue.Queue()
        self.num_heartbeats = 0
        self.echoes = True

    def next(self, kind: str) -> Any:
        """The next message, which must be of that kind."""
        message = self.incoming.get(timeout=WAIT_S)
        assert message is not None, f"the stream has ended, expected {kind}"
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    def observation(self) -> control_pb2.Observation:
        return self.next("observation")

    def ended(self) -> None:
        """Wait for the client's end; messages that come before it are let go."""
        while self.incoming.get(timeout=WAIT_S) is not None:
            pass

    def send(self, **message: Any) -> None:
        self.outgoing.put(control_pb2.ControlResponse(**message))

    def opened(self) -> None:
        self.send(opened=control_pb2.ControlOpened(
            session_id=f"c-{self.number}", action_horizon=HORIZON, schema=self.opening.schema, epoch=self.opening.epoch,
        ))  # fmt: skip

    def answer(self, observation: control_pb2.Observation, actions: np.ndarray, **more: Any) -> None:
        fields: dict[str, Any] = {"answers_seq": observation.seq, "epoch": observation.epoch, **more}
        self.send(chunk=control_pb2.ActionChunk(actions=tensor_from_array(actions), **fields))

    def event(self, kind: str, seq: int | None = None, epoch: int = 0, detail: str = "", **more: Any) -> None:
        number = control_pb2.ControlEvent.Kind.Value(f"KIND_{kind.upper()}")
        error = request_pb2.ErrorDetail(code="INTERNAL", message=detail) if detail else None
        self.send(event=control_pb2.ControlEvent(kind=number, seq=seq, epoch=epoch, detail=error, **more))

    def end(self, code: grpc.StatusCode | None = None, sentence: str = "the end") -> None:
        self.outgoing.put(None if code is None else _Abort(code, sentence))


class _Abort(Exception):
    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        self.code = code
        self.sentence = sentence


class FakePolicyServer(control_pb2_grpc.RobotServicer, runtime_pb2_grpc.RuntimeServicer):
    """`opens` is what happens to a new stream before the test gets it from `stream()`."""

    def __init__(self, port: int = 0) -> None:
        self.policy: control_pb2.PolicySchema | None = policy_schema()
        self.opens: Callable[[FakeStream], None] = FakeStream.opened
        self.streams: queue.Queue[FakeStream] = queue.Queue()
        self.num_streams = 0
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_RobotServicer_to_server(self, self._server)
        runtime_pb2_grpc.add_RuntimeServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stream(self) -> FakeStream:
        """The next one that was opened."""
        return self.streams.get(timeout=WAIT_S)

    def forget(self) -> None:
        """As it was at first, for another test."""
        self.policy = policy_schema()
        self.opens = FakeStream.opened
        self.streams = queue.Queue()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def DescribeModel(self, request: runtime_pb2.DescribeModelRequest, context: Any) -> Any:  # noqa: N802
        if request.model != "toy":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model!r} is served")
        summary = runtime_pb2.ModelSummary(name="toy", serving=True)
        return runtime_pb2.DescribeModelResponse(summary=summary, policy=self.policy)

    def Control(self, requests: Iterator[control_pb2.ControlRequest], context: Any) -> Iterator[Any]:  # noqa: N802
        first = next(requests)
        assert first.WhichOneof("message") == "open", first
        self.num_streams += 1
        stream = FakeStream(first.open, self.num_streams)
        reading = threading.Thread(target=self._read, args=(requests, stream), daemon=True)
        reading.start()
        self.streams.put(stream)
        self.opens(stream)
        while (response := stream.outgoing.get()) is not None:
            if isinstance(response, _Abort):
                context.abort(response.code, response.sentence)
            yield response

    @staticmethod
    def _read(requests: Iterator[control_pb2.ControlRequest], stream: FakeStream) -> None:
        with contextlib.suppress(grpc.RpcError, Exception):
            for request in requests:
                kind = request.WhichOneof("message")
                if kind == "heartbeat":
                    stream.num_heartbeats += 1
                    if stream.echoes:
                        stream.send(heartbeat=request.heartbeat)
                    continue
                stream.incoming.put(request)
                if kind == "close":
                    stream.send(closed=control_pb2.ControlClosed())
                    stream.end()
        stream.incoming.put(None)
        stream.end()


@contextlib.contextmanager
def fake_policy_server() -> Iterator[FakePolicyServer]:
    server = FakePolicyServer()
    try:
        yield server
    finally:
        server.stop()


class Proxy:
    """Forwards TCP connections to a server until `swallow`: from then on the connections that there are stay open, and nothing
    comes through any more. New ones go through.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._swallowing: set[socket.socket] = set()
        self.num_connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        self._swallowing.update(self._sockets)

    def close(self) -> None:
        self._listening.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.num_connections += 1
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._swallowing:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def picture(value: int = 7) -> np.ndarray:
    return np.full((SIZE, SIZE, 3), value, np.uint8)


def numbers(tensor: tensor_pb2.Tensor) -> list[Any]:
    return array_from_tensor(tensor, "tensor").tolist()
