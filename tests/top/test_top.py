"""`mstar-rt top`: figures out of snapshots, and the command against a server."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from control_stream import opened, policy_runtime
from toy_runtime import ToyRuntime

from mstar_rt.cli import main
from mstar_rt.client import Histogram, ModelInfo, RuntimeStats, ServerInfo, SessionInfo
from mstar_rt.clock import ManualClock
from mstar_rt.errors import Unavailable
from mstar_rt.top import command
from mstar_rt.top.figures import figures
from mstar_rt.top.snapshot import Snapshot
from mstar_rt.top.view import MAX_SESSIONS, view

BOUNDS = (1e3, 2e3, 4e3)
WORKER = {
    "steps_total": 100.0, "units_total": 150.0, "utilisation": 0.4, "ready_units/control": 1.0, "misses/control": 2.0,
    "oldest_ready_us/control": 2500.0, "drops/late": 2.0, "drops/hopeless": 1.0, "over_bound/toy/act": 4.0,
    "pages_free/toy/a": 75.0, "pages_held/toy/a": 25.0, "pages_free/toy/b": 9.0, "pages_held/toy/b": 1.0,
}  # fmt: skip
SESSION = SessionInfo(
    "s-1", "control", "toy", "ipv4:127.0.0.1:9", 60.0, 20.0, 50.0, 19.9, 8.0, 12.0, 1194, 6, {"stale": 3}, None
)


def snapshot(at_s: float, worker: dict[str, float], counts: tuple[int, ...], ended: float) -> Snapshot:
    run_us = Histogram(BOUNDS, counts, 2e3 * sum(counts))
    batch = Histogram(BOUNDS, counts, 1.5 * sum(counts))
    stats = RuntimeStats(
        processes={
            "server": {"requests_running": 3.0, "requests_ended/control/OK": ended, "ticks_missed/toy/late": 6.0},
            "conductor": {"admitted_utilisation/0": 0.35},
            "worker/0": worker,
        },
        silent=("worker/1",),
        histograms={"worker/0": {"run_us/toy/act": run_us, "batch_size/toy/act": batch}},
    )
    server = ServerInfo("1.0", 1, 100.0, True, False, ())
    models = [ModelInfo("toy", "toy", "", True, "", ()), ModelInfo("other", "toy", "", False, "it loads", ())]
    return Snapshot("here:1", int(at_s * 1e9), server, models, [SESSION], stats)


BEFORE = snapshot(10.0, WORKER, (0, 50, 50, 0), 1000.0)
NOW = snapshot(12.0, {**WORKER, "steps_total": 300.0, "units_total": 450.0}, (0, 250, 50, 0), 1040.0)


def test_rates_are_between_two_snapshots() -> None:
    found = figures(NOW, BEFORE)
    busy, silent = found.ranks
    assert (busy.steps_per_s, busy.mean_batch, busy.utilisation) == (100.0, 1.5, 0.4)
    assert (busy.num_dropped, busy.num_over_bound, busy.pages_used) == (3.0, 4.0, 0.25)
    assert busy.oldest_ready_ms == {"control": 2.5}
    assert (silent.rank, silent.answers) == (1, False)
    assert found.requests_per_s == {"control": 20.0}
    assert found.admitted_utilisation == {"0": 0.35}
    assert found.not_serving == {"other": "it loads"}
    (node,) = found.nodes
    assert (node.num_steps, node.steps_per_s, node.mean_batch) == (200, 100.0, 1.5)
    assert 1.0 <= node.p50_ms <= node.p99_ms <= 2.0, "only what came since"
    assert node.busy == pytest.approx(0.2)


def test_one_snapshot_has_no_rates_and_a_worker_that_came_back_counts_from_nothing() -> None:
    alone = figures(NOW)
    assert alone.ranks[0].steps_per_s is None
    assert alone.requests_per_s == {}
    assert alone.nodes[0].p99_ms > 2.0
    again = snapshot(14.0, {**WORKER, "steps_total": 5.0, "units_total": 5.0}, (5, 0, 0, 0), 1040.0)
    back = figures(again, NOW)
    assert (back.ranks[0].steps_per_s, back.ranks[0].mean_batch) == (None, 1.0)
    assert back.nodes[0].num_steps == 5


def drawn(problem: str = "", num_sessions: int = 1) -> str:
    found = replace(figures(NOW, BEFORE), sessions=(SESSION,) * num_sessions)
    console = Console(file=io.StringIO(), width=220)
    console.print(view(found, problem))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_everything_that_matters_is_on_the_screen() -> None:
    text = drawn()
    for expected in (
        "here:1", "control 20.0/s", "ticks missed 6", "other does not serve: it loads", "silent", "40%", "35%",
        "1 (2.5 ms)", "s-1", "19.9", "12.00", "1194", "stale 3", "act",
    ):  # fmt: skip
        assert expected in text, f"{expected!r} is not in\n{text}"


def test_a_screen_has_an_end_and_says_what_is_wrong() -> None:
    assert "and 7 more" in drawn(num_sessions=MAX_SESSIONS + 7)
    assert drawn("no answer from the server").startswith("no answer from the server")


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


def test_the_command_prints_one_table_or_json(runtime: ToyRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    import grpc

    with grpc.insecure_channel(runtime.address) as channel:
        robot = opened(channel)
        robot.observe(1)
        robot.hear("chunk")
        assert main(["top", runtime.address, "--once", "--period-s", "0.2"]) == 0
        assert "control  toy" in " ".join(capsys.readouterr().out.split("   "))
        assert main(["top", runtime.address, "--json", "--period-s", "0.2"]) == 0
        found = json.loads(capsys.readouterr().out)
        robot.close()
    (session,) = found["sessions"]
    assert (session["kind"], session["num_answered"]) == ("control", 1)
    assert found["ranks"][0]["rank"] == 0


def test_the_live_view_goes_on_when_the_server_is_away_and_ends_at_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Snapshot | Unavailable] = [NOW, Unavailable("no answer from the server at here:1"), NOW]

    def take(*_: object) -> Snapshot:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def sleep(_: float) -> None:
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "take", take)
    console = Console(file=io.StringIO(), force_terminal=True, width=200, height=50)
    with pytest.raises(KeyboardInterrupt):
        command._show(console, None, ManualClock(), BEFORE, 1.0, sleep)  # type: ignore[arg-type]
    assert not answers
    assert "no answer from the server" in console.file.getvalue()  # type: ignore[attr-defined]


def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "127.0.0.1:1", "--once"]) == 2
    assert capsys.readouterr().err.startswith("mstar-rt: no answer from the server at 127.0.0.1:1")
    assert main(["top", "127.0.0.1:1", "--period-s", "0"]) == 2


def test_the_trace_command_writes_a_file_and_names_who_is_missing(
    runtime: ToyRuntime, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    assert main(["trace", runtime.address, "--out", str(file), "--last-s", "5"]) == 0
    assert capsys.readouterr().out == f"{file}: 1 spans of server, worker/0\n"
    assert any(event["name"] == "act" for event in json.loads(file.read_text()))
    runtime.answers_traces = False
    runtime.dispatcher._questions.timeout_s = 0.01
    assert main(["trace", runtime.address, "--out", str(file)]) == 0
    assert "worker/0 did not answer" in capsys.readouterr().err
    assert main(["trace", runtime.address, "--out", str(file), "--last-s", "-1"]) == 2
