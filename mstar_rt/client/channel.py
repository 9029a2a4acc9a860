"""How clients connect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpc_health.v1 import health_pb2_grpc

from mstar_rt.client.credentials import Option
from mstar_rt.errors import FailedPrecondition
from mstar_rt.protos import generation_pb2_grpc, runtime_pb2_grpc, task_pb2_grpc, world_model_pb2_grpc

OPTIONS: list[Option] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),  # else a server that is stopped, whose kernel still answers, is never found
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # this is how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
]
"""A dead server is noticed within 14 s; a restarted one is found within about a second. A robot's client
lives on the same machine or network as its server, so it neither limits what it receives nor uses a proxy.
"""


OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""For a channel that must not share the connection of another one to the same server, which may be dead."""

ON_CALLERS_THREAD = ("SingleThreadedUnaryStream", 1)
"""For grpc's blocking channel: whoever iterates over a stream of answers waits for them itself. Without this each such
call starts a thread to wait for it, which was measured to cost 0.2 ms.
"""


class Connection:
    """The services of one channel, until it is closed. `open_channel` is of `Credentials`.

    Raises:  FailedPrecondition: a service is asked for after that.
    """

    def __init__(self, open_channel: Callable[[str, Sequence[Option]], Any], address: str, *options: Option) -> None:
        self.address = address
        self._open_channel = open_channel
        self.channel = channel = open_channel(address, [*OPTIONS, *options])
        self.closed = False
        self._world_model: Any = world_model_pb2_grpc.WorldModelStub(channel)
        self._generation: Any = generation_pb2_grpc.GenerationStub(channel)
        self._tasks: Any = task_pb2_grpc.TasksStub(channel)
        self._runtime: Any = runtime_pb2_grpc.RuntimeStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    def new_channel(self) -> Any:
        """A channel to the same server over a connection of its own, which the caller closes."""
        return self._open_channel(self.address, [*OPTIONS, OWN_CONNECTION])

    @property
    def world_model(self) -> Any:
        self.check_open()
        return self._world_model

    @property
    def generation(self) -> Any:
        self.check_open()
        return self._generation

    @property
    def tasks(self) -> Any:
        self.check_open()
        return self._tasks

    @property
    def runtime(self) -> Any:
        self.check_open()
        return self._runtime

    @property
    def health(self) -> Any:
        self.check_open()
        return self._health

    def check_open(self) -> None:
        if self.closed:
            raise FailedPrecondition(f"the client of {self.address} is closed: connect again")
