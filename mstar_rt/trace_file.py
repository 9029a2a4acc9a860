"""Writes the spans of all processes of a deployment as one file that ui.perfetto.dev and chrome://tracing open.

Also a program, which reads what to write from standard input: a server has its file written by another process, with no
priority, so that no tick waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar_rt.trace import Span, span_of

Event = dict[str, Any]


def write_chrome_trace(path: str | Path, processes: Mapping[str, Iterable[Span]]) -> None:
    """All or nothing: whoever sees the file sees all of it.

    Raises:  OSError: it cannot be written; names `path`.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(chrome_events(processes), separators=(",", ":")))
        unfinished.rename(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def chrome_events(processes: Mapping[str, Iterable[Span]]) -> list[Event]:
    """Times are microseconds in that format. Each process has its name, each track too, and the spans of one request
    are joined by arrows.
    """
    events: list[Event] = []
    of_request: dict[str, list[Event]] = {}
    for pid, process in enumerate(sorted(processes, key=_rank_last), start=1):
        events.append(_metadata("process_name", pid, 0, {"name": process}))
        events.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
        for tid, (track, spans) in enumerate(_lanes(processes[process]), start=1):
            events.append(_metadata("thread_name", pid, tid, {"name": track}))
            events.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
            for span in spans:
                event = _slice(span, pid, tid)
                events.append(event)
                for request_id in span.requests:
                    of_request.setdefault(request_id, []).append(event)
    for request_id, slices in of_request.items():
        events += _arrows(request_id, slices)
    return events


def _rank_last(process: str) -> tuple[bool, str, int]:
    """The server first, then the workers by their number."""
    name, _, rank = process.partition("/")
    return (bool(rank), name, int(rank) if rank.isdigit() else 0)


def _lanes(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """By track, in rows on which a span lies inside another one or beside it: no viewer draws two that cross."""
    lanes: dict[str, list[list[Span]]] = {}
    open_ends: dict[tuple[str, int], list[int]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        rows = lanes.setdefault(span.track, [])
        for number in range(len(rows) + 1):
            ends = open_ends.setdefault((span.track, number), [])
            while ends and ends[-1] <= span.start_ns:
                ends.pop()
            if not ends or span.end_ns <= ends[-1]:
                break
        ends.append(span.end_ns)
        if number == len(rows):
            rows.append([])
        rows[number].append(span)
    return [
        (track if number == 0 else f"{track} ({number + 1})", row)
        for track, rows in sorted(lanes.items())
        for number, row in enumerate(rows)
    ]


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _slice(span: Span, pid: int, tid: int) -> Event:
    args = dict(span.detail)
    if span.requests:
        args["requests"] = ", ".join(span.requests)
    return {
        "name": span.name,
        "cat": span.track,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": span.start_ns / 1e3,
        "dur": span.duration_ns / 1e3,
        "args": args,
    }


def _arrows(request_id: str, slices: Sequence[Event]) -> list[Event]:
    """From each slice of a request to the one that began next."""
    if len(slices) < 2:
        return []
    ordered = sorted(slices, key=lambda event: event["ts"])
    phases = ["s", *["t"] * (len(ordered) - 2), "f"]
    return [
        {
            "name": "request",
            "cat": "request",
            "ph": phase,
            "bp": "e",
            "id": zlib.crc32(request_id.encode()),
            "pid": event["pid"],
            "tid": event["tid"],
            "ts": event["ts"],
        }
        for phase, event in zip(phases, ordered, strict=True)
    ]


def main(argv: Sequence[str]) -> int:
    """`argv`: the file to write. Standard input is a JSON object of rows by process (see trace.TraceRing.encoded)."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    rows = json.load(sys.stdin.buffer)
    write_chrome_trace(argv[0], {process: [span_of(row) for row in spans] for process, spans in rows.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
