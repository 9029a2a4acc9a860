"""The network edge of a deployment: where it listens, and who may use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_rt.config_process import ProcessConfig, check_process
from mstar_rt.errors import ConfigError


@dataclass(frozen=True)
class ServerConfig:
    """`port` 0 takes a free one.

    Other addresses than loopback need TLS (`tls_cert_file` with `tls_key_file`), tokens (`tokens_file`) or `insecure`.
    With `tls_client_ca_file` clients need a certificate as well. All of it is for the gRPC port, for `metrics_port`
    and for `http_port`; paths are relative to the deployment file.

    `drain_timeout_s` is how long a server that is told to stop lets running requests finish. `max_unread_mb` is how
    much of one request's answer may wait for a client that does not read.

    `http_port` serves OpenAI's HTTP API (0 takes a free port; None: nowhere).

    `metrics_port` serves Prometheus metrics at http://host:metrics_port/metrics (0 takes a free port; None: nowhere).
    A control tick that misses its deadline leaves a trace of all processes in the folder `trace_dir` ("": nowhere).
    `otlp_endpoint` is the address of an OpenTelemetry collector, e.g. http://127.0.0.1:4318 ("": none).
    """

    host: str = "127.0.0.1"
    port: int = 50051
    reflection: bool = False
    insecure: bool = False
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    tokens_file: str = ""
    max_message_mb: int = 64
    drain_timeout_s: float = 10.0
    max_unread_mb: int = 64
    http_port: int | None = None
    metrics_port: int | None = None
    trace_dir: str = ""
    otlp_endpoint: str = ""
    process: ProcessConfig = field(default_factory=ProcessConfig)


def check_server(server: ServerConfig, where: str) -> None:
    """Raises:  ConfigError."""
    if not 0 <= server.port <= 65535:
        raise ConfigError(f"{where}.port is {server.port}, expected 0 to 65535")
    if not 1 <= server.max_message_mb <= 1024:
        raise ConfigError(f"{where}.max_message_mb is {server.max_message_mb}, expected 1 to 1024")
    if not 1 <= server.max_unread_mb <= 65536:
        raise ConfigError(f"{where}.max_unread_mb is {server.max_unread_mb}, expected 1 to 65536")
    _check_tls(server, where)
    _check_ports(server, where)
    _check_watching(server, where)
    check_process(server.process, f"{where}.process")


def _check_tls(server: ServerConfig, where: str) -> None:
    if bool(server.tls_cert_file) != bool(server.tls_key_file):
        given, missing = ("cert", "key") if server.tls_cert_file else ("key", "cert")
        raise ConfigError(f"{where}.tls_{given}_file is given without tls_{missing}_file, TLS needs both")
    if server.tls_client_ca_file and not server.tls_cert_file:
        raise ConfigError(f"{where}.tls_client_ca_file is given without tls_cert_file, which TLS needs first")


def _check_ports(server: ServerConfig, where: str) -> None:
    taken = {server.port: "port"} if server.port else {}
    for name, port in (("metrics_port", server.metrics_port), ("http_port", server.http_port)):
        if port is None:
            continue
        if not 0 <= port <= 65535:
            raise ConfigError(f"{where}.{name} is {port}, expected 0 to 65535")
        if port in taken:
            raise ConfigError(f"{where}.{name} is {port}, as is {taken[port]}: choose another one")
        if port:
            taken[port] = name


def _check_watching(server: ServerConfig, where: str) -> None:
    if server.otlp_endpoint and not server.otlp_endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{where}.otlp_endpoint is {server.otlp_endpoint!r}, expected e.g. 'http://127.0.0.1:4318'")
