"""`mstar-rt demo`: its parts, what it refuses, when it falls short, and a small run of the policy part."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from mstar_rt.cli import main
from mstar_rt.errors import Unavailable
from sim_bridge import demo, demo_planner, demo_policy, fleet, policy_fleet


def _row(chunking: str, added_delay_ms: float, success_rate: float) -> dict[str, Any]:
    return {
        "chunking": chunking,
        "added_delay_ms": added_delay_ms,
        "success_rate": success_rate,
        "errors": [],
        "num_robots": 8,
        "refusals": ["no room"],
    }


@pytest.mark.parametrize(
    ("success_rate", "random_rate", "errors", "status"),
    [(0.8, 0.0, [], 0), (0.75, 0.0, [], 1), (1.0, 0.3, [], 1), (1.0, 0.0, ["the server is gone"], 1)],
)
def test_it_ends_with_0_only_if_the_robots_did_it(
    success_rate: float,
    random_rate: float,
    errors: list[str],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [_row("off", 0.0, 0.1), _row("prefix", 0.0, success_rate) | {"errors": errors}, _row("prefix", 300.0, 0.1)]
    summary = {"success_of_baselines": {"expert": 1.0, "random": random_rate}, "settings": rows}
    assert demo_policy._verdict(summary, tmp_path) == status
    out = capsys.readouterr().out
    assert ("FALLS SHORT" in out) == bool(status)
    assert "8 of 9 robots were taken on (prefix): no room" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["policy", "--robots", "0"],
        ["policy", "--delays-ms", "-1"],
        ["policy", "--seed", "-1"],
        ["planner", "--episodes", "0"],
    ],
)
def test_values_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize(("part", "robots"), [(demo_policy, policy_fleet), (demo_planner, fleet)])
def test_a_server_that_asks_for_a_token_gets_it(
    part: ModuleType, robots: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used: list[Any] = []

    def given(config: Path, address: str, model: str, access: Any) -> contextlib.nullcontext[str]:
        used.append(access)
        return contextlib.nullcontext(address)

    def connect_async(address: str, **access: Any) -> NoReturn:
        used.append(access)
        raise Unavailable("nobody is there")

    monkeypatch.setattr(part, "served_or_given", given)
    monkeypatch.setattr(robots, "connect_async", connect_async)
    for baseline in ("expert_success_rate", "random_success_rate"):
        monkeypatch.setattr(part, baseline, lambda *_: 0.0, raising=False)
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    with pytest.raises(Unavailable, match="nobody"):
        part.main(["--address", "robots:50051", "--token-file", str(token), "--output", str(tmp_path)])
    assert used == [{"token": "secret"}] * 2


def test_added_delay_and_tls_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "policy", "--address", "robots:50051", "--tls-ca-file", "ca.pem"]) == 2
    assert "--delays-ms adds delay by a relay on 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["polcy"], ["--output", "x", "policy"], ["--robots", "3"]])
def test_the_part_comes_first(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", *arguments])


def test_both_parts_run_and_the_worse_one_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, Path]] = []

    def run(part: str, output: Path) -> int:
        ran.append((part, output))
        return 1 if part == "policy" else 0

    monkeypatch.setattr(demo, "_in_a_process_of_its_own", run)
    assert main(["demo", "--output", str(tmp_path)]) == 1
    assert ran == [("policy", tmp_path / "policy"), ("planner", tmp_path / "planner")]


@pytest.mark.system
def test_robots_are_driven_through_a_slow_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--robots", "2", "--episodes", "2", "--delays-ms", "100", "--chunking", "prefix"]
    assert main(["demo", "policy", *options, "--output", str(tmp_path)]) in (0, 1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    (row,) = summary["settings"]
    assert summary["success_of_baselines"] == {"expert": 1.0, "random": 0.0}
    assert row["errors"] == []
    assert row["chunk_latency_ms"]["p50"] > 100.0
    assert row["num_chunks"] > 4
    assert row["delay_actions"]["p50"] >= 2
    assert (tmp_path / "seams.png").exists()
    assert list(tmp_path.glob("episodes.*"))
    assert "100 ms" in capsys.readouterr().out
