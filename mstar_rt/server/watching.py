"""Who looks at a server from outside: Prometheus, a folder of traces, an OpenTelemetry collector; each if asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mstar_rt.clock import Clock
from mstar_rt.server.access import Keys, check_reachable
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.metrics_http import MetricsServer
from mstar_rt.server.otel import span_export
from mstar_rt.server.tls import TlsFiles, ssl_context
from mstar_rt.server.trace_dumps import TraceDumps, make_trace_folder


@dataclass(frozen=True)
class WatchConfig:
    """See config.ServerConfig. `host` is where the metrics are served, to whom the rest may be used by; paths are
    absolute."""

    deployment: str = ""
    host: str = "127.0.0.1"
    insecure: bool = False
    tls: TlsFiles | None = None
    tokens_file: str = ""
    metrics_port: int | None = None
    trace_dir: str = ""
    otlp_endpoint: str = ""


@contextlib.asynccontextmanager
async def watched(config: WatchConfig, dispatcher: Dispatcher, clock: Clock) -> AsyncIterator[str]:
    """Gives the address of the metrics, "" if there are none.

    Raises:  FailedPrecondition, ConfigError: what is asked for cannot be had.
    """
    async with contextlib.AsyncExitStack() as stack:
        meters = dispatcher.meters
        if config.otlp_endpoint:
            export = span_export(config.otlp_endpoint, config.deployment, clock)
            export.start()
            stack.callback(export.stop)
            meters.on_ended = export.ended
        if config.trace_dir:
            folder = Path(config.trace_dir)
            make_trace_folder(folder)
            dumps = TraceDumps(folder, dispatcher.collect_traces, clock)
            stack.push_async_callback(dumps.stop)
            meters.on_missed = dumps.missed
        address = ""
        if config.metrics_port is not None:
            server = await _metrics(config, config.metrics_port, dispatcher)
            stack.push_async_callback(server.stop)
            host = f"[{config.host}]" if ":" in config.host else config.host
            address = f"{'https' if config.tls else 'http'}://{host}:{server.port}/metrics"
        yield address


async def _metrics(config: WatchConfig, port: int, dispatcher: Dispatcher) -> MetricsServer:
    """Whoever may use the server may see its metrics, with the same token and the same certificate."""
    has_tls, has_keys = config.tls is not None, bool(config.tokens_file)
    check_reachable(config.host, has_tls=has_tls, has_keys=has_keys, insecure=config.insecure)
    keys = Keys.load(config.tokens_file, "tokens_file") if config.tokens_file else None
    server = MetricsServer(dispatcher.collect_stats, keys)
    await server.start(config.host, port, ssl_context(config.tls) if config.tls is not None else None)
    return server
