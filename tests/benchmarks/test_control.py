"""The control benchmark: what it makes of its measurements, its policy that does nothing, its echo, its picture."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from benchmarks.control import compiled, overhead, scene, shipped, smoothness
from benchmarks.control.echo import echoing
from benchmarks.control.overhead import BYTES, ECHO, SHARED
from benchmarks.control.plot import plot
from benchmarks.noop import policy as noop
from benchmarks.report import Report, Row
from mstar_rt.client.results import NodeTime, Timing
from mstar_rt.model import NodeResources
from mstar_rt.model.policy_check import check_policy
from mstar_rt.protos import control_pb2 as wire

SUMMARY = {
    "chunking": "prefix", "success_rate": 0.5, "seam_jump_mm": {"p50": 1.5, "p95": 4.0}, "seam_jump_over_step": {"p50": 0.5},
    "jerk_ratio": float("nan"), "starvation_ticks": 3, "stop_ticks": 2, "num_ticks": 50, "action_age_ms": {},
    "deadline_miss_rate": 0.25, "num_chunks": 12,
}  # fmt: skip


def test_the_policy_that_does_nothing_is_one() -> None:
    model = noop.declare("noop", "", {})
    check_policy(model)
    (result,) = noop.build_nodes(model, NodeResources())["act"].run([None])  # type: ignore[list-item]
    assert tuple(result.outputs["actions"].shape) == (50, 32)


def test_what_is_sent_has_three_cameras() -> None:
    scenes = scene.noise_scenes()
    message = wire.ControlRequest.FromString(scene.request_bytes(scenes[0]))
    assert sorted(message.observation.images) == ["base", "left_wrist", "right_wrist"]
    assert message.ByteSize() > 3 * 224 * 224 * 3
    assert 50 * 32 * 4 < scene.answer_bytes() < 50 * 32 * 4 + 300
    assert not np.array_equal(scenes[0].images["base"], scenes[1].images["base"])


def test_the_echo_answers_with_as_many_bytes_as_it_is_told() -> None:
    async def trip() -> None:
        async with echoing(bytes(5000), 77) as echo:
            for _ in range(3):
                await echo.round_trip()

    asyncio.run(trip())


def test_every_system_is_called_in_each_period_and_another_one_first() -> None:
    order: list[str] = []

    def system(name: str) -> overhead.RoundTrip:
        async def run() -> None:
            order.append(name)

        return run

    ticks = overhead.NUM_WARMUPS + 6
    systems = {name: system(name) for name in (ECHO, BYTES, SHARED)}
    hz, overhead.CONTROL_HZ = overhead.CONTROL_HZ, 1e5
    try:
        seconds, timings = asyncio.run(overhead._paced(systems, 6e-5))
    finally:
        overhead.CONTROL_HZ = hz
    assert [len(values) for values in seconds.values()] == [6, 6, 6]
    assert timings == {ECHO: [], BYTES: [], SHARED: []}
    periods = list(itertools.batched(order, 3)) if hasattr(itertools, "batched") else np.array(order).reshape(-1, 3)
    assert len(periods) == ticks
    assert all(sorted(period) == sorted(systems) for period in periods)
    assert {str(period[0]) for period in periods} == set(systems)


def test_the_split_adds_up() -> None:
    timing = Timing(100.0, 20.0, {"act": NodeTime(1, 20.0, 30.0, 0)}, {}, 400.0, 50.0, 700.0)
    rows = overhead._split(BYTES, [1e-3], [timing])
    assert sum(row.value for row in rows) == pytest.approx(1000.0)
    assert {row.metric: row.value for row in rows}["client, network"] == pytest.approx(300.0)


def test_the_checks_compare_with_the_echo() -> None:
    report = Report("control", {})
    seconds = {ECHO: [1e-3] * 10, BYTES: [1.8e-3] * 10, SHARED: [0.9e-3] * 10}
    overhead._check_overhead(report, seconds)
    assert [round(check.value, 6) for check in report.checks] == [0.8, 0.8, 0.9]
    assert [check.holds for check in report.checks] == [True, True, False]


def test_ages_that_grow_are_seen() -> None:
    assert overhead._growth([np.full(30, 0.1)]) == pytest.approx(1.0)
    assert overhead._growth([np.linspace(0.0, 3.0, 30), np.linspace(0.0, 3.0, 30)]) > 1.4
    assert overhead._growth([np.empty(0)]) == float("inf")


def test_a_figure_that_a_run_does_not_have_is_left_out() -> None:
    found = {row.metric: row.value for row in smoothness.rows_of(100, SUMMARY)}
    assert found == {
        "success": 50.0, "seam p50": 1.5, "seam p95": 4.0, "seam p50 over step": 0.5, "starved": 10.0,
        "late chunks": 25.0, "chunks": 12.0,
    }  # fmt: skip


def test_what_is_asked_for_is_measured() -> None:
    assert (overhead.FULL.paced_s, overhead.FULL.crowds) == (60.0, (1, 4, 16))
    assert {4, 8} <= set(shipped.FULL.crowds)
    assert smoothness.FULL.delays_ms == (0, 100, 200, 300, 400)
    assert set(smoothness.MODES) == {None, "guided_identity", "guided", "prefix", "temporal_ensemble"}


def test_a_compiled_flow_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "sys", type("Sys", (), {"executable": "/bin/false"}))
    report = Report("control", {})
    compiled.measure(report)
    assert report.settings[compiled.LOOP] == "does not work here: it said nothing"
    assert not report.rows


def test_a_picture_is_written(tmp_path: Path) -> None:
    rows = [
        Row(overhead.ONE, system, metric, 1.0, "ms") for system in (ECHO, BYTES) for metric in ("p50", "p95", "p99")
    ]
    rows += [Row(f"shipped policy, {n} robots at once", "served", "chunks", 10.0 * n, "Hz") for n in (1, 4)]
    rows.append(Row("where a chunk's time goes, p50", "served", "denoise x5", 9.0, "ms"))
    rows += [row for delay in (0, 100) for row in smoothness.rows_of(delay, SUMMARY | {"jerk_ratio": 1.0 + delay})]
    plot(Report("control", {}, rows), str(tmp_path / "x.png"))
    assert len(np.unique(image.imread(tmp_path / "x.png").reshape(-1, 4), axis=0)) > 20
