"""Who looks at a server from outside: Prometheus, a folder of traces, an OpenTelemetry collector; each if asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mstar_rt.clock import Clock
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.metrics_http import MetricsServer
from mstar_rt.server.otel import span_export
from mstar_rt.server.trace_dumps import TraceDumps, make_trace_folder


@dataclass(frozen=True)
class WatchConfig:
    """See config.ServerConfig. `host` is where the metrics are served; `trace_dir` is absolute."""

    deployment: str = ""
    host: str = "127.0.0.1"
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
            server = MetricsServer(dispatcher.collect_stats)
            await server.start(config.host, config.metrics_port)
            stack.push_async_callback(server.stop)
            host = f"[{config.host}]" if ":" in config.host else config.host
            address = f"http://{host}:{server.port}/metrics"
        yield address
