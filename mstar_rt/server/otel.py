"""One OpenTelemetry span for every request and every control tick, to a collector that speaks OTLP over HTTP.

Needs the packages of the extra `otel`. On a tick's path it costs one append; spans are made and sent by a thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mstar_rt.clock import Clock
from mstar_rt.errors import ConfigError
from mstar_rt.server.metrics import PARTS, Ended

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PERIOD_S = 1.0
MAX_WAITING = 20_000
"""Spans that wait for a collector that does not answer; the oldest are dropped."""

_log = logging.getLogger(__name__)

Export = Callable[[Sequence["ReadableSpan"]], Any]


class SpanExport:
    """`ended` takes what ServerMeters tells; `start` begins to send."""

    def __init__(self, export: Export, deployment: str, clock: Clock) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._export = export
        self._clock = clock
        self._waiting: deque[Ended] = deque(maxlen=MAX_WAITING)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "mstar-rt", "mstar.deployment": deployment}),
            shutdown_on_exit=False,
        )
        self._tracer = self._provider.get_tracer("mstar_rt")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)

    def ended(self, ended: Ended) -> None:
        self._waiting.append(ended)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = PERIOD_S) -> None:
        """Sends what waits, but holds up nobody for longer than that."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def send(self) -> int:
        """Everything that waits; returns how many spans that were."""
        spans = []
        # The collector wants the time of day.
        offset_ns = time.time_ns() - self._clock.now_ns()
        while self._waiting:
            spans.append(self._span(self._waiting.popleft(), offset_ns))
        if spans:
            self._export(spans)
        return len(spans)

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            self._send_or_say()
        self._send_or_say()

    def _send_or_say(self) -> None:
        try:
            self.send()
        except Exception as error:
            _log.warning("spans could not be sent to the OpenTelemetry collector: %s", error)

    def _span(self, ended: Ended, offset_ns: int) -> ReadableSpan:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes: dict[str, str | float] = {
            "mstar.model": ended.model,
            "mstar.task": ended.task,
            "mstar.criticality": ended.criticality,
            "mstar.request_id": ended.request_id,
            "mstar.session_id": ended.session_id,
            "mstar.code": ended.code,
        }
        attributes |= {f"mstar.{part}_us": part_us for part, part_us in zip(PARTS, ended.parts_us)}
        name = f"{ended.kind} {ended.model}"
        start_ns = ended.start_ns + offset_ns
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=attributes, start_time=start_ns)
        if ended.code != "OK":
            span.set_status(Status(StatusCode.ERROR, ended.code))
        span.end(ended.end_ns + offset_ns)
        return span  # type: ignore[return-value]


def span_export(endpoint: str, deployment: str, clock: Clock) -> SpanExport:
    """Raises:  ConfigError: OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(
            "server.otlp_endpoint is set, but OpenTelemetry is not installed: pip install 'mstar-rt[otel]'"
        ) from None
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=PERIOD_S)
    return SpanExport(exporter.export, deployment, clock)
