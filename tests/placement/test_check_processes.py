"""`mstar-rt check` about keys of processes that are not as usual, and about what they ask of the kernel: what, whether
they would get it, and who would starve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mstar_rt import check_report
from mstar_rt.check_report import report
from mstar_rt.config import parse_deployment
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition
from mstar_rt.placement import Placement

STARVED = "warning: ranks {}, in real time, can keep the server from all its {} core(s); set a higher "


@pytest.fixture(autouse=True)
def _permissive_machine_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_report, "check_permitted", lambda process: None)
    monkeypatch.setattr(check_report.os, "cpu_count", lambda: 2)


def lines(server: dict[str, Any], *workers: dict[str, Any], **keys: Any) -> list[str]:
    return lines_of(
        server={"process": server, **keys},
        workers=[{"threads": process.pop("threads", 1), "process": process} for process in workers],
    )


def lines_of(server: dict[str, Any], workers: list[dict[str, Any]], **keys: Any) -> list[str]:
    data = {
        "name": "test",
        "server": server,
        "models": [{"name": "m", "family": "f"}],
        "workers": [{"rank": rank, **worker} for rank, worker in enumerate(workers)],
        **keys,
    }
    said = report(parse_deployment(data, base_dir="/nowhere"), {}, Placement({}))
    return [line for line in said if not line.startswith(("rank ", "warning: rank "))]


def test_nothing_asked_nothing_said() -> None:
    assert lines({}, {}) == []


def test_keys_that_change_what_is_done_are_said(tmp_path: Path) -> None:
    server = {
        "http_port": 0,
        "metrics_port": 9100,
        "trace_dir": "traces",
        "otlp_endpoint": "http://127.0.0.1:4318",
        "reflection": True,
    }
    worker = {"max_step_ms": 8, "max_batch": 1, "scheduling": "fcfs", "check_outputs": True, "compile": True}
    assert lines_of(server, [worker, {}], admission={"utilisation_bound": None, "max_queued_planning": 4}) == [
        "  compiles what can be, which takes half a minute or more at each start",
        '  max_batch 1, check_outputs true, max_step_ms 8, scheduling "fcfs"',
        "server:",
        "  OpenAI's API on a free port of 127.0.0.1",
        "  metrics on port 9100 of 127.0.0.1",
        "  traces of missed ticks go to /nowhere/traces, which will be made",
        "  spans go to http://127.0.0.1:4318",
        "  reflection true",
        "admission: utilisation_bound null, max_queued_planning 4",
    ]
    assert lines_of({"metrics_port": 0, "trace_dir": str(tmp_path)}, [{}]) == [
        "server:", "  metrics on a free port of 127.0.0.1", f"  traces of missed ticks go to {tmp_path}",
    ]  # fmt: skip


def test_what_is_asked_is_said() -> None:
    assert lines({"realtime_priority": 8}, {"cpus": [0, 1], "realtime_priority": 7}) == [
        "  process: cores 0, 1, real time, priority 7",
        "server:",
        "  process: real time, priority 8",
    ]


def test_what_would_be_refused_here_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: ProcessConfig) -> None:
        if process.realtime_priority:
            raise FailedPrecondition("realtime_priority 7 is not permitted to this user")

    monkeypatch.setattr(check_report, "check_permitted", refuse)
    assert lines({}, {"realtime_priority": 7}) == [
        "  process: real time, priority 7",
        "warning: realtime_priority 7 is not permitted to this user",
    ]


@pytest.mark.parametrize(
    ("server", "workers", "starved"),
    [
        ({}, [{"realtime_priority": 5}], None),
        ({}, [{"realtime_priority": 5}, {"realtime_priority": 5}], ("0, 1", 2)),
        ({}, [{"realtime_priority": 5, "threads": 2}], ("0", 2)),
        ({}, [{"realtime_priority": 5, "threads": 2, "cpus": [1]}], None),
        ({"cpus": [1]}, [{"realtime_priority": 5}], ("0", 1)),
        ({"cpus": [0]}, [{"realtime_priority": 5, "cpus": [1]}], None),
        ({"realtime_priority": 5}, [{"realtime_priority": 5}, {"realtime_priority": 5}], ("0, 1", 2)),
        ({"realtime_priority": 6}, [{"realtime_priority": 5}, {"realtime_priority": 5}], None),
        ({}, [{}, {}, {"cpus": [1]}], None),
    ],
)
def test_a_server_that_workers_could_starve(
    server: dict[str, Any], workers: list[dict[str, Any]], starved: tuple[str, int] | None
) -> None:
    warnings = [line for line in lines(server, *workers) if line.startswith("warning")]
    assert len(warnings) == (starved is not None)
    if starved is not None:
        assert warnings[0].startswith(STARVED.format(*starved))
