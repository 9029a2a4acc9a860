"""`mstar-rt check` about what processes ask of the kernel: what, whether they would get it, and who would starve."""

from __future__ import annotations

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
    data = {
        "name": "test",
        "server": {"process": server, **keys},
        "models": [{"name": "m", "family": "f"}],
        "workers": [
            {"rank": rank, "threads": process.pop("threads", 1), "process": process}
            for rank, process in enumerate(workers)
        ],
    }
    said = report(parse_deployment(data), {}, Placement({}))
    return [line for line in said if not line.startswith(("rank ", "warning: rank "))]


def test_nothing_asked_nothing_said() -> None:
    assert lines({}, {}) == []


def test_what_is_asked_is_said() -> None:
    assert lines({"realtime_priority": 8}, {"cpus": [0, 1], "realtime_priority": 7}, keep_cpus_awake=True) == [
        "  process: cores 0, 1, real time, priority 7",
        "server:",
        "  process: real time, priority 8",
        "  keeps all cores awake",
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
