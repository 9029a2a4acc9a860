"""Spans for a collector: one for each request and tick, with where its time went; nothing of it on the tick's path."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from mstar_rt.clock import ManualClock
from mstar_rt.errors import ConfigError
from mstar_rt.server.metrics import Ended
from mstar_rt.server.otel import MAX_WAITING, SpanExport, span_export

TICK = Ended(
    "tick", "toy", "act", "control", "r-1", "s-1", 10**9, 10**9 + 5_000_000, "DEADLINE_EXCEEDED", (1.0, 2.0, 3.0, 4.0, 5.0)
)  # fmt: skip


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def export(self, spans: Sequence[Any]) -> None:
        self.spans += spans


def test_a_tick_is_a_span_with_its_parts_and_its_status() -> None:
    collector = Collector()
    export = SpanExport(collector.export, "lab", ManualClock(10**9 + 5_000_000))
    export.ended(TICK)
    assert (export.send(), export.send()) == (1, 0)
    (span,) = collector.spans
    assert (span.name, span.status.status_code.name, span.status.description) == (
        "tick toy", "ERROR", "DEADLINE_EXCEEDED",
    )  # fmt: skip
    assert span.end_time - span.start_time == 5_000_000
    assert abs(span.end_time - time.time_ns()) < 60 * 10**9, "the time of day"
    assert span.attributes["mstar.request_id"] == "r-1"
    assert [span.attributes[f"mstar.{part}_us"] for part in ("decode", "queue", "run", "transport", "encode")] == [
        1.0, 2.0, 3.0, 4.0, 5.0,
    ]  # fmt: skip
    assert span.resource.attributes["mstar.deployment"] == "lab"


def test_a_collector_that_is_away_costs_the_oldest_spans_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def away(spans: Sequence[Any]) -> None:
        raise ConnectionError("nobody there")

    export = SpanExport(away, "lab", ManualClock())
    for _ in range(MAX_WAITING + 5):
        export.ended(TICK)
    assert len(export._waiting) == MAX_WAITING
    export._waiting.clear()
    export.ended(TICK)
    export.start()
    export.stop(timeout_s=30.0)
    assert "could not be sent" in caplog.text


def test_without_the_packages_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'mstar-rt\[otel\]'"):
        span_export("http://127.0.0.1:1", "lab", ManualClock())
