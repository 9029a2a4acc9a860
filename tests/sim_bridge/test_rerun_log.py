"""Logs for the Rerun viewer: what is in the file, read back by its own reader; a sentence where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_stream import policy_runtime
from toy_env import ToyEnv

from mstar_rt.client import Plan, RobotAction, connect
from mstar_rt.client.results import Timing
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition
from sim_bridge.gym_bridge import drive
from sim_bridge.gym_mapping import GymMapping
from sim_bridge.rerun_log import RerunLog, main


class FakeRerun:
    """The calls that a log makes, with their values."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.logged: list[tuple[dict[str, float], str, str, Any]] = []
        self.is_open = True

    def __getattr__(self, kind: str) -> Any:
        return lambda *args, **fields: (kind, args[0] if args else fields["contents"])

    def RecordingStream(self, name: str) -> FakeRerun:  # noqa: N802
        return self

    def save(self, path: str) -> None:
        self.path = path

    def set_time(self, timeline: str, **value: float) -> None:
        (self.times[timeline],) = value.values()

    def log(self, entity: str, what: tuple[str, Any]) -> None:
        assert self.is_open
        self.logged.append((dict(self.times), entity, *what))

    def flush(self) -> None:
        pass

    def disconnect(self) -> None:
        self.is_open = False

    def of(self, entity: str) -> list[Any]:
        return [value for _, name, _, value in self.logged if name == entity]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRerun:
    rerun = FakeRerun()
    monkeypatch.setitem(sys.modules, "rerun", rerun)
    return rerun


def run(log: RerunLog, record: Path | None = None) -> None:
    mapping = GymMapping(state=("joints", "gripper"))
    with policy_runtime() as runtime, connect(runtime.address) as client:
        drive(
            client, "toy", ToyEnv(3), mapping, seed=2, execute=2, instruction="push", normalization="lab", log=log,
            record=record, shared_memory=False,
        )  # fmt: skip


def test_a_run_and_its_recording_have_the_same_in_them(fake: FakeRerun, tmp_path: Path) -> None:
    with RerunLog(tmp_path / "run.rrd") as log:
        run(log, tmp_path / "run.rec")
    assert not fake.is_open
    assert fake.of("robot_0/state")[0].tolist()[0] == 2.0
    assert len(fake.of("robot_0/top")) == len(fake.of("robot_0/action")) == 3
    live = fake.of("robot_0/chunk/numbers")
    assert [times["tick"] for times, entity, _, _ in fake.logged if entity == "robot_0/chunk"] == [0, 2]
    assert len(fake.of("robot_0/latency_ms/chunk")) == 2
    fake.logged.clear()
    fake.is_open = True
    assert main([str(tmp_path / "run.rec"), str(tmp_path / "again.rrd")]) == 0
    for ours, theirs in zip(live, fake.of("robot_0/chunk/numbers"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert fake.of("robot_0/top")[0].shape == (16, 16, 3)
    assert len(fake.of("robot_0/state")) == 2, "two observations"


def test_plans_and_robots_without_an_action(fake: FakeRerun, tmp_path: Path) -> None:
    clock = ManualClock(5)
    timing = Timing(0.0, 0.0, {}, {}, 0.0, 0.0, 0.0)
    with RerunLog(tmp_path / "run.rrd", clock) as log:
        clock.advance_ns(1_500_000_000)
        log.acted(1, 7, RobotAction("stop", None, reason="nothing came"))
        log.plan(1, 8, Plan(np.ones((3, 7), np.float32), 0.25, 0.5, 4, timing, "r"), 80.0)
    assert fake.logged[0] == ({"tick": 7, "time": 1.5}, "robot_1/events", "TextLog", "stop: nothing came")
    assert len(fake.of("robot_1/plan")[0]) == 7
    assert fake.of("robot_1/latency_ms/plan")[0].tolist() == [80.0]


def test_without_rerun_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'mstar-rt\[viz\]'"):
        RerunLog(tmp_path / "run.rrd")
    assert main([str(tmp_path / "none.rec"), str(tmp_path / "run.rrd")]) == 2
    assert "rerun-sdk is not installed" in capsys.readouterr().err


def test_the_file_is_one_of_rerun(tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install 'mstar-rt[viz]'")
    with RerunLog(tmp_path / "run.rrd") as log:
        run(log, tmp_path / "run.rec")
    assert (tmp_path / "run.rrd").read_bytes()[:4] in (b"RRF2", b"RRIO")
    assert main([str(tmp_path / "run.rec"), str(tmp_path / "again.rrd")]) == 0
    assert (tmp_path / "again.rrd").stat().st_size > 1000
