"""Spans of what a process did, written as a Chrome/Perfetto trace (JSON array format)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work: `start_ns` on the machine's monotonic clock, `track` the row it is drawn on."""

    name: str
    track: str
    start_ns: int
    duration_ns: int
    detail: str = ""


class TraceRing:
    """The newest `capacity` spans; recording is one append, so that it may stay on in production."""

    def __init__(self, capacity: int = 4096) -> None:
        self._records: deque[tuple[str, str, int, int, object]] = deque(maxlen=capacity)

    def record(self, name: str, track: str, start_ns: int, end_ns: int, detail: object = "") -> None:
        """`detail` becomes text when the spans are asked for."""
        self._records.append((name, track, start_ns, end_ns, detail))

    def spans(self) -> list[Span]:
        return [Span(name, track, start, end - start, str(detail)) for name, track, start, end, detail in self._records]


def write_chrome_trace(path: str | Path, spans: Iterable[Span]) -> None:
    """Write spans so that chrome://tracing and ui.perfetto.dev open them; times are microseconds there."""
    events = [
        {
            "name": span.name,
            "ph": "X",
            "pid": 1,
            "tid": span.track,
            "ts": span.start_ns / 1e3,
            "dur": span.duration_ns / 1e3,
            "args": {"detail": span.detail} if span.detail else {},
        }
        for span in spans
    ]
    Path(path).write_text(json.dumps(events))
