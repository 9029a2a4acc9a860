"""Spans: what a ring keeps, and the file that Perfetto opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.trace import Span, TraceRing, spans_of
from mstar_rt.trace_file import chrome_events, write_chrome_trace


def of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_a_ring_keeps_the_newest_spans_and_gives_those_since_a_moment() -> None:
    ring = TraceRing(capacity=3)
    for index in range(5):
        ring.record(f"s{index}", "control", 100 * index, 100 * index + 50, "r1", {"model": "toy"})
    assert [span.name for span in ring.spans()] == ["s2", "s3", "s4"]
    assert spans_of(ring.encoded()) == ring.spans()
    assert [span.name for span in spans_of(ring.encoded(since_ns=350))] == ["s3", "s4"]
    assert spans_of(ring.encoded(since_ns=451)) == []


def test_one_request_or_several_and_a_text_or_values_become_the_same_kind_of_span() -> None:
    ring = TraceRing()
    ring.record("a", "t", 0, 5, "r1", "OK")
    ring.record("b", "t", 5, 9, ("r1", "r2"))
    one, two = ring.spans()
    assert one == Span("a", "t", 0, 5, ("r1",), {"detail": "OK"})
    assert (two.requests, two.detail, two.duration_ns) == (("r1", "r2"), {}, 4)


def test_a_file_names_processes_and_tracks_and_joins_what_was_done_for_one_request(tmp_path: Path) -> None:
    tick = Span("tick", "robot s1", 1_000, 9_000, ("r1",), {"seq": 7})
    step = Span("act", "control", 2_000, 8_000, ("r1", "r2"), {"model": "toy"})
    file = tmp_path / "trace.json"
    write_chrome_trace(file, {"worker/10": [step], "worker/2": [step], "server": [tick]})
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    events = json.loads(file.read_text())
    names = {event["pid"]: event["args"]["name"] for event in of(events, "M") if event["name"] == "process_name"}
    assert names == {1: "server", 2: "worker/2", 3: "worker/10"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"}
    assert threads == {(1, 1): "robot s1", (2, 1): "control", (3, 1): "control"}
    first = of(events, "X")[0]
    assert (first["name"], first["ts"], first["dur"]) == ("tick", 1.0, 8.0)
    assert first["args"] == {"seq": 7, "requests": "r1"}
    of_r1 = [event for event in events if event.get("id") == of(events, "s")[0]["id"]]
    assert [(event["ph"], event["pid"]) for event in of_r1] == [("s", 1), ("t", 2), ("f", 3)]


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "trace.json", tmp_path / "file" / "trace.json", tmp_path / "folder"):
        with pytest.raises(OSError, match=r".") as failure:
            write_chrome_trace(path, {"server": []})
        assert failure.value.filename == str(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


spans = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 50), st.integers(0, 20)).map(
        lambda drawn: Span("s", drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    max_size=30,
)


@given(spans)
def test_no_two_spans_of_a_row_cross(given_spans: list[Span]) -> None:
    events = of(chrome_events({"server": given_spans}), "X")
    assert len(events) == len(given_spans)
    rows: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        start_ns, duration_ns = round(1e3 * event["ts"]), round(1e3 * event["dur"])
        rows.setdefault(event["tid"], []).append((start_ns, start_ns + duration_ns))
    for row in rows.values():
        for index, (start, end) in enumerate(row):
            for other_start, other_end in row[index + 1 :]:
                apart = end <= other_start or other_end <= start
                inside = (start <= other_start and other_end <= end) or (other_start <= start and end <= other_end)
                assert apart or inside


def test_another_process_writes_what_rings_gave(tmp_path: Path) -> None:
    ring = TraceRing()
    ring.record("act", "control", 10, 20, ("r1", "r2"), {"model": "toy"})
    given_rows = b'{"server":[],"worker/0":' + ring.encoded() + b"}"
    file = tmp_path / "missed.json"
    command = [sys.executable, "-m", "mstar_rt.trace_file", str(file)]
    subprocess.run(command, input=given_rows, check=True, timeout=60)
    (event,) = of(json.loads(file.read_text()), "X")
    assert (event["name"], event["args"]["requests"]) == ("act", "r1, r2")
