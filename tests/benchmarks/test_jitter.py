"""The jitter benchmark: its cases are deployments, its blocks take turns, who is busy stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.jitter import busy, compare
from benchmarks.jitter.cases import CASES, QUICK_CASES, Case
from benchmarks.jitter.compare import WITH, WITHOUT, Pace
from benchmarks.report import Report
from mstar_rt import process_settings
from mstar_rt.config import parse_deployment
from mstar_rt.config_process import ProcessConfig
from mstar_rt.errors import FailedPrecondition


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_deployment_and_changes_something(case: Case) -> None:
    plain = Case("plain")
    assert parse_deployment(case.deployment) != parse_deployment(plain.deployment) or case.module != plain.module


def test_quick_cases_are_cases() -> None:
    assert all(case in CASES for case in QUICK_CASES)
    assert len({case.name for case in CASES}) == len(CASES)


def test_what_the_kernel_refuses_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without rights gets the other cases, rather than a server that ends in the middle."""

    def refuse(process: ProcessConfig) -> None:
        if process.realtime_priority or 1 in process.cpus:
            raise FailedPrecondition(f"no {process.realtime_priority or 'second core'}")

    @contextlib.contextmanager
    def running(case: Case) -> Iterator[str]:
        started.append(case.name)
        yield case.name

    async def compared(report: Report, case: Case, addresses: dict[str, str], effort: compare.Effort) -> None:
        assert addresses == {WITHOUT: WITHOUT, WITH: case.name}

    started: list[str] = []
    monkeypatch.setattr(process_settings, "check_permitted", refuse)
    monkeypatch.setattr(compare, "_running", running)
    monkeypatch.setattr(compare, "_compare", compared)
    report = Report("jitter", {})
    compare.measure(report, CASES, compare.QUICK)
    assert started == [WITHOUT, "malloc as glibc has it", "two threads"]
    assert report.settings["left out"] == {
        "server on core 0, worker on core 1": "no second core", "real time, programs busy": "no 20",
    }  # fmt: skip
    with pytest.raises(FailedPrecondition, match="nothing can be measured here: no 20"):
        compare.measure(report, CASES[-1:], compare.QUICK)


class Robot:
    """Stands for a session."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    async def send(self, images: Any, state: Any) -> int:
        self.order.append(self.name)
        return len(self.order)

    async def wait_for_chunk(self, seq: int, timeout_s: float) -> None:
        assert seq == len(self.order)


def test_blocks_take_turns_and_another_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SETTLE_S", 0.0)
    monkeypatch.setattr(compare, "NUM_WARMUPS", 1)
    order: list[str] = []
    sessions: Any = {name: Robot(name, order) for name in (WITHOUT, WITH)}
    seconds = asyncio.run(compare._in_blocks(sessions, compare.noise_scenes()[:1], Pace(1e6, 3, 4)))
    blocks = [order[start : start + 4] for start in range(4, len(order), 4)]  # two ticks of each are warm-ups
    assert [set(block) for block in blocks] == [{name} for name in (WITH, WITHOUT, WITHOUT, WITH) * 2]
    assert {system: len(values) for system, values in seconds.items()} == {WITHOUT: 12, WITH: 12}


def test_the_worst_tick_is_told() -> None:
    rows = {row.metric: row.value for row in compare._rows("case", WITH, [0.001] * 999 + [0.5])}
    assert (rows["p50"], rows["p99"], rows["max"], rows["ticks"]) == pytest.approx((1.0, 1.0, 500.0, 1000))
    assert 1.0 < rows["p99.9"] < 500.0


def test_busy_programs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(busy, "NEVER_IDLE", "import signal; signal.pause()")  # as far as this test needs it
    monkeypatch.setattr(busy.subprocess, "Popen", Popen)
    with busy.busy_programs():
        assert len(started) == os.cpu_count()
        assert all(program.poll() is None for program in started)
    assert all(program.returncode == -9 for program in started)


def test_a_robot_collects_no_garbage_while_it_is_measured() -> None:
    with busy.as_a_robot(in_real_time=False):
        assert not gc.isenabled()
    assert gc.isenabled()
