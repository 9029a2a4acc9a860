"""Starting and stopping the gRPC server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.config_dialects import DialectConfig
from mstar_rt.errors import ConfigError
from mstar_rt.model import ServedModel
from mstar_rt.model.node_place import NodePlace
from mstar_rt.protos import control_pb2_grpc, generation_pb2_grpc, runtime_pb2_grpc, task_pb2_grpc, world_model_pb2_grpc
from mstar_rt.server.access import Keys, check_reachable, exposure, is_loopback
from mstar_rt.server.binding import address_text, bound_socket, listening_error, port_in_use
from mstar_rt.server.compat.lerobot.service import add_lerobot
from mstar_rt.server.compat.listeners import Dialects, Listener
from mstar_rt.server.control.service import RobotService
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.gateway.check import check_gateway
from mstar_rt.server.generation.service import GenerationService
from mstar_rt.server.guard import GuardInterceptor
from mstar_rt.server.parsing import ParsingInterceptor
from mstar_rt.server.rates import MessageRates
from mstar_rt.server.runtime_service import SERVED, RuntimeService
from mstar_rt.server.task_runner import TaskRunner
from mstar_rt.server.tasks import TasksService
from mstar_rt.server.tls import TlsFiles, server_credentials, ssl_context
from mstar_rt.server.world_model import WorldModelService

if TYPE_CHECKING:
    from mstar_rt.server.gateway.server import Gateway

HANDSHAKE_TIMEOUT_MS = 10_000
PORT = "port"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EdgeConfig:
    """Where and how to listen.

    `port` 0 takes a free one. `insecure` allows an address that other machines can reach without `tls` or
    `tokens_file`: whoever can reach it can use it. `max_message_bytes` bounds a request: 16 MiB hold 348 frames of
    [64, 64, 3] or 111 of [224, 224, 3] uint8. `max_messages_per_s` is of one client; None: any number. Files that
    `dialects` name are absolute. `http_port` is OpenAI's API, on the same host; None: it is not served.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    reflection: bool = False
    max_message_bytes: int = 16 << 20
    insecure: bool = False
    tls: TlsFiles | None = None
    tokens_file: str = ""
    max_messages_per_s: float | None = None
    dialects: tuple[DialectConfig, ...] = ()
    http_port: int | None = None
    keepalive_time_ms: int = 10_000
    keepalive_timeout_ms: int = 4_000


@dataclass
class Edge:
    """A running server. `address` is what clients connect to."""

    server: grpc.aio.Server
    host: str
    port: int
    sessions: ControlSessions
    dialects: Dialects = field(default_factory=Dialects)
    gateway: Gateway | None = None

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)

    @property
    def listeners(self) -> list[Listener]:
        """What listens besides gRPC."""
        return [*self.dialects.listeners, *([self.gateway] if self.gateway is not None else [])]

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, give running ones `grace_s`, then cancel them."""
        others = [listener.stop(grace_s) for listener in self.listeners]
        await asyncio.gather(*others, self.server.stop(grace_s))

    async def wait(self) -> None:
        await self.server.wait_for_termination()


async def start_edge(
    config: EdgeConfig,
    models: Mapping[str, ServedModel],
    dispatcher: Dispatcher,
    clock: Clock | None = None,
    places: Mapping[str, Sequence[NodePlace]] = MappingProxyType({}),
) -> Edge:
    """Listen and serve; `dispatcher.run()` must be running, or nothing is ever answered. `places`: of each model's
    nodes, for those who ask.

    Raises:  FailedPrecondition: the port is in use.  ConfigError: an address that may not or cannot be
             listened on, keys or certificates that cannot be used.
    """
    clock = clock or MonotonicClock()
    keys, credentials = check_edge_config(config)
    rates = MessageRates(config.max_messages_per_s, clock, dispatcher.meters.counters)
    knows_clients = config.tls is not None and bool(config.tls.client_ca)
    guard = GuardInterceptor(keys, rates, dispatcher.meters.counters, knows_clients)
    server = grpc.aio.server(interceptors=[guard, ParsingInterceptor()], options=_options(config))
    runner = TaskRunner(models, dispatcher, clock)
    world_model_pb2_grpc.add_WorldModelServicer_to_server(WorldModelService(runner), server)
    task_pb2_grpc.add_TasksServicer_to_server(TasksService(runner), server)
    runtime = RuntimeService(models, runner, clock, config.max_message_bytes, places)
    runtime_pb2_grpc.add_RuntimeServicer_to_server(runtime, server)
    sessions = ControlSessions(runner, clock, config.max_message_bytes)
    control_pb2_grpc.add_RobotServicer_to_server(RobotService(sessions), server)
    add_lerobot(server, sessions, config.dialects, models)
    generation_pb2_grpc.add_GenerationServicer_to_server(GenerationService(runner), server)
    await _add_health(server, dispatcher)
    if config.reflection:
        reflection.enable_server_reflection((*SERVED, reflection.SERVICE_NAME), server)
    port = await _bind(server, config, credentials)
    if warning := exposure(
        config.host, has_tls=config.tls is not None, has_keys=keys is not None, knows_clients=knows_clients
    ):
        _log.warning(warning)
    dialects = Dialects(config.dialects, models, sessions, rates, config.tls, config.insecure)
    edge = Edge(server, config.host, port, sessions, dialects)
    try:
        await dialects.start()
        if config.http_port is not None:
            edge.gateway = await _gateway(config, config.http_port, models, runner, keys, rates)
    except BaseException:
        await edge.stop()  # its port is bound already
        raise
    await server.start()
    return edge


def _options(config: EdgeConfig) -> list[tuple[str, int]]:
    """Keepalive finds a dead or stopped client within 14 s. One process owns the port.

    No ping strikes: the pings by which gRPC itself measures bandwidth count as strikes in a lively two-way stream, and
    then end the connection of a healthy robot with ENHANCE_YOUR_CALM.
    """
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", config.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", config.keepalive_timeout_ms),
        # Without this one a peer that is stopped, whose kernel still answers, is never found.
        ("grpc.http2.ping_timeout_ms", config.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]


def check_edge_config(config: EdgeConfig) -> tuple[Keys | None, grpc.ServerCredentials | None]:
    """What clients are checked with; None: they are not.

    Raises:  ConfigError: see `start_edge`.
    """
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port is {config.port}, expected 0 (any free one) to 65535")
    if config.http_port is not None and not 0 <= config.http_port <= 65535:
        raise ConfigError(f"http_port is {config.http_port}, expected 0 (any free one) to 65535")
    if config.max_message_bytes < 1024:
        raise ConfigError(f"max_message_bytes is {config.max_message_bytes}, expected at least 1024")
    has_tls, has_keys = config.tls is not None, bool(config.tokens_file)
    check_reachable(config.host, has_tls=has_tls, has_keys=has_keys, insecure=config.insecure)
    keys = Keys.load(config.tokens_file, "tokens_file") if config.tokens_file else None
    return keys, server_credentials(config.tls) if config.tls is not None else None


async def _gateway(
    config: EdgeConfig, port: int, models: Mapping[str, ServedModel], runner: TaskRunner, keys: Keys | None,
    rates: MessageRates,
) -> Gateway:  # fmt: skip
    check_gateway(models)
    from mstar_rt.server.gateway.app import gateway_app
    from mstar_rt.server.gateway.server import Gateway

    app = gateway_app(runner, models, keys, rates, is_local=is_loopback(config.host) and not config.insecure)
    tls = None if config.tls is None else ssl_context(config.tls)
    gateway = Gateway(app, config.host, port, tls)
    await gateway.start()
    return gateway


async def _bind(server: grpc.aio.Server, config: EdgeConfig, credentials: grpc.ServerCredentials | None) -> int:
    """gRPC does not say why it could not bind, so the address is tried first."""
    with await bound_socket(config.host, config.port, PORT) as probe:
        try:
            probe.listen()
        except OSError as error:
            raise listening_error(error, config.host, config.port, PORT) from None
    target = address_text(config.host, config.port)
    try:
        return server.add_insecure_port(target) if credentials is None else server.add_secure_port(target, credentials)
    except RuntimeError:
        raise port_in_use(config.host, config.port, PORT) from None


async def _add_health(server: grpc.aio.Server, dispatcher: Dispatcher) -> None:
    """grpc.health.v1: one service per model, and "" for all of them together."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

    async def update() -> None:
        serving = {name: state.serving and not dispatcher.draining for name, state in dispatcher.serving.items()}
        for name, is_serving in {**serving, "": bool(serving) and all(serving.values())}.items():
            await servicer.set(name, _health(is_serving))

    dispatcher.availability.on_changed = update
    await update()


def _health(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    status = health_pb2.HealthCheckResponse
    return status.SERVING if serving else status.NOT_SERVING
