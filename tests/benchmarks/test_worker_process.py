"""What is measured in this process has a worker's settings; the server's own are left alone."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.served import worker_process
from benchmarks.served.deployment import Deployed
from mstar_rt.config import worker_environment


def test_runs_the_module_with_a_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> Namespace:
        calls.append((command, env))
        return Namespace(returncode=3)

    monkeypatch.setattr(worker_process.subprocess, "run", run)
    args = Namespace(quick=True, json="r.json", png=None)
    status = worker_process.run_like_a_worker("benchmarks.x", Deployed(Path("d.yaml"), "127.0.0.1:5"), args)
    assert status == 3
    ((command, environment),) = calls
    assert command == [sys.executable, "-m", "benchmarks.x", "d.yaml", "127.0.0.1:5", "--quick", "--json", "r.json"]
    expected = worker_environment(1)
    assert {name: expected[name] for name in expected if name not in worker_process.LEFT_TO_TORCH} == environment
    assert "MALLOC_TRIM_THRESHOLD_" in environment

    monkeypatch.setattr(sys, "argv", command[2:])
    server, parsed = worker_process.arguments()
    assert server == Deployed(Path("d.yaml"), "127.0.0.1:5")
    assert (parsed.quick, parsed.json, parsed.png) == (True, "r.json", None)
