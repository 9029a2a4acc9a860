"""Files for missed ticks: one at a time, not too often, not too many, and none of it in the tick's way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition
from mstar_rt.server import trace_dumps
from mstar_rt.server.trace_dumps import (
    LAST_S,
    LEAST_PERIOD_S,
    MAX_FILES,
    TraceDumps,
    check_trace_folder,
    make_trace_folder,
)
from mstar_rt.server.watching import WatchConfig, watched

ROWS = b'[["act","control",1000,2000,"r1",{"model":"toy"}]]'


class Rings:
    """What all processes have, and what was asked of them."""

    def __init__(self, silent: tuple[str, ...] = ()) -> None:
        self.silent = list(silent)
        self.asked: list[float] = []

    async def collect(self, last_s: float) -> tuple[dict[str, bytes], list[str]]:
        self.asked.append(last_s)
        return {"server": b"[]", "worker/0": ROWS}, self.silent


def dumps_to(folder: Path, rings: Rings, clock: ManualClock | None = None) -> TraceDumps:
    return TraceDumps(folder, rings.collect, clock or ManualClock(10**9), pause_s=0.0)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_missed_tick_leaves_a_file_of_all_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rings = Rings(silent=("worker/1",))
    dumps = dumps_to(tmp_path / "new" / "folder", rings)
    dumps.missed("r-1")
    await dumps.written()
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert file.name == "missed-000001-r-1.json"
    names = {event["name"] for event in json.loads(file.read_text())}
    assert {"act", "process_name"} <= names
    assert rings.asked == [LAST_S]
    assert "without worker/1" in caplog.text
    assert str(file) in caplog.text


@pytest.fixture
def _written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(path: Path, rows: dict[str, bytes]) -> None:
        path.touch()  # noqa: ASYNC240

    monkeypatch.setattr(trace_dumps, "_write", write)


@pytest.mark.usefixtures("_written_at_once")
async def test_misses_that_follow_one_another_leave_one_file_a_period(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, rings = ManualClock(10**9), Rings()
    dumps = dumps_to(tmp_path, rings, clock)
    dumps.missed("r-1")
    dumps.missed("r-2")
    await dumps.written()
    dumps.missed("r-3")
    clock.advance_ns(int(LEAST_PERIOD_S * 1e9))
    dumps.missed("r-4")
    await dumps.written()
    assert names_in(tmp_path) == ["missed-000001-r-1.json", "missed-000002-r-4.json"]
    assert [message.partition(" ")[0] for message in caplog.messages] == ["2", "2"], "none is left uncounted"


@pytest.mark.usefixtures("_written_at_once")
async def test_the_folder_keeps_the_newest_and_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("mine")
    for number in range(1, MAX_FILES + 3):
        (tmp_path / f"missed-{number:06d}-r-{number}.json").write_text("[]")
    dumps = dumps_to(tmp_path, Rings())
    dumps.missed("r-new")
    await dumps.written()
    names = names_in(tmp_path)
    assert names[-1] == "notes.json"
    assert len(names) == MAX_FILES + 1
    assert names[-2] == f"missed-{MAX_FILES + 3:06d}-r-new.json"


async def test_a_folder_that_cannot_be_written_is_an_error_in_the_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    dumps = dumps_to(tmp_path / "file", Rings())
    dumps.missed("r-1")
    await dumps.written()
    assert "could not be written" in caplog.text


# ---- before the first miss


def test_a_folder_that_could_be_made_is_good_and_is_made_at_the_start_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    check_trace_folder(folder)
    assert not names_in(tmp_path), "a check leaves nothing"
    make_trace_folder(folder)
    assert folder.is_dir()
    assert not names_in(folder)
    make_trace_folder(folder)


@pytest.mark.parametrize("look", [check_trace_folder, make_trace_folder])
def test_a_folder_below_a_file_is_refused(tmp_path: Path, look: Any) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "traces" / "of today"):
        with pytest.raises(
            FailedPrecondition, match=f"no traces can be written to {folder}: .*/file is no folder; name"
        ):
            look(folder)


def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may write anywhere, maybe."""
    monkeypatch.setattr(trace_dumps.os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(FailedPrecondition, match=f"traces: this user may not write to {tmp_path}; name another folder"):
        check_trace_folder(tmp_path / "traces")


@pytest.mark.parametrize("look", [check_trace_folder, make_trace_folder])
def test_where_no_folder_can_be_made_whatever_the_permissions_say_is_refused(look: Any) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"no traces can be written to /proc/x: .*/proc.*; name another folder"
    ):
        look(Path("/proc/x"))


@pytest.mark.parametrize("look", [check_trace_folder, make_trace_folder])
def test_a_link_to_nowhere_is_refused(tmp_path: Path, look: Any) -> None:
    link = tmp_path / "traces"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(FailedPrecondition, match=f"{link} is no folder"):
        look(link)
    assert names_in(tmp_path) == ["traces"]


def test_a_disk_that_is_full_is_found_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_dumps.tempfile, "TemporaryFile", full)
    with pytest.raises(FailedPrecondition, match="No space left on device; name another folder"):
        make_trace_folder(tmp_path)


async def test_a_server_does_not_start_with_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    dispatcher: Any = type(
        "Dispatcher", (), {"meters": type("Meters", (), {"on_missed": None})(), "collect_traces": None}
    )
    config = WatchConfig(trace_dir=str(tmp_path / "file"))
    with pytest.raises(FailedPrecondition, match=r"server\.trace_dir: no traces can be written"):
        async with watched(config, dispatcher, ManualClock()):
            pytest.fail("it started")
    assert dispatcher.meters.on_missed is None
