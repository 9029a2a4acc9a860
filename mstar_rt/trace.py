"""Spans of what a process did, kept in a ring; `trace_file` writes those of all processes for Perfetto."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = tuple[str, str, int, int, Any, Any]
"""Name, track, start_ns, end_ns, ids of the requests that it was done for (one text, or several), detail (a text, or
values by name)."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work: times on the machine's monotonic clock, which its processes share; `track` is the row that it
    is drawn on, `requests` are the ids of those that it was done for.
    """

    name: str
    track: str
    start_ns: int
    end_ns: int
    requests: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class TraceRing:
    """The newest `capacity` spans; recording is one append, so that it may stay on in production."""

    def __init__(self, capacity: int = 4096) -> None:
        self._rows: deque[Row] = deque(maxlen=capacity)

    def record(
        self, name: str, track: str, start_ns: int, end_ns: int, requests: str | tuple[str, ...] = (), detail: Any = ""
    ) -> None:
        """`detail` is a text, or values by name; it must not change any more."""
        self._rows.append((name, track, start_ns, end_ns, requests, detail))

    def record_pieces(self, track: str, pieces: Iterable[tuple[str, int, int]], requests: str) -> None:
        """Several spans of one request at once: (name, start_ns, end_ns)."""
        self._rows.extend([(name, track, start_ns, end_ns, requests, "") for name, start_ns, end_ns in pieces])

    def spans(self) -> list[Span]:
        return [span_of(row) for row in self._rows]

    def encoded(self, since_ns: int = 0) -> bytes:
        """Those that ended at `since_ns` or later as a JSON list of rows, oldest first."""
        import msgspec  # processes that record have it; a client, which only reads spans, does without

        rows = list(self._rows)
        start = len(rows)
        while start and rows[start - 1][3] >= since_ns:
            start -= 1
        return msgspec.json.encode(rows[start:])


def span_of(row: Row) -> Span:
    name, track, start_ns, end_ns, requests, detail = row
    return Span(
        name,
        track,
        start_ns,
        end_ns,
        (requests,) if isinstance(requests, str) else tuple(requests),
        detail if isinstance(detail, Mapping) else {"detail": detail} if detail else {},
    )


def spans_of(rows: bytes | str) -> list[Span]:
    """What `TraceRing.encoded` gave."""
    return [span_of(row) for row in json.loads(rows)]
