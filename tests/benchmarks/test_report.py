"""Reports hold what was measured, and checks say whether a bound holds; none of it changes the exit status."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.report import Check, Report, Row, finish, percentile_rows
from benchmarks.report.timing import alternate


def test_percentiles_are_milliseconds() -> None:
    rows = percentile_rows("case", "served", [0.001 * i for i in range(1, 101)])
    assert [(row.metric, round(row.value, 2), row.unit) for row in rows] == [
        ("p50", 50.5, "ms"), ("p95", 95.05, "ms"), ("p99", 99.01, "ms"),
    ]  # fmt: skip


def test_checks() -> None:
    assert Check.at_least("a", 2.0, 2.0).holds
    assert not Check.at_least("a", 1.9, 2.0).holds
    assert Check.at_most("a", 2.0, 2.0).bound == "<= 2"
    assert not Check.at_most("a", 2.1, 2.0).holds


def test_files_and_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        "plan", {"threads": 1}, [Row("H=1", "served", "p50", 1.5, "ms")], [Check.at_least("ratio", 1.0, 2.0)]
    )
    args = Namespace(quick=True, json=str(tmp_path / "r.json"), png=str(tmp_path / "r.png"))
    assert finish(report, args) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["rows"] == [{"case": "H=1", "system": "served", "metric": "p50", "value": 1.5, "unit": "ms"}]
    assert written["checks"] == [{"name": "ratio", "value": 1.0, "bound": ">= 2", "holds": False}]
    assert set(written) == {"benchmark", "machine", "settings", "rows", "checks"}
    assert (tmp_path / "r.png").stat().st_size > 1000
    out = capsys.readouterr().out
    assert "FALLS SHORT: ratio" in out
    assert "  ms ┃" in out, "a figure without its unit says nothing"


def test_systems_take_turns() -> None:
    order: list[str] = []
    seconds = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, budget_s=0.0, num_warmups=1)
    assert order == ["a", "b"] * 4
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_quick_systems_have_several_turns_beside_a_slow_one() -> None:
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in ("slow", "a", "b")}  # type: ignore[misc]
    seconds = alternate(runs, budget_s=0.0, num_warmups=0, turns={"a": 3, "b": 2})
    assert order == ["slow", "a", "b", "a", "b", "a"] * 3
    assert {name: len(values) for name, values in seconds.items()} == {"slow": 3, "a": 9, "b": 6}
