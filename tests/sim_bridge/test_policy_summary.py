"""What the demo's table says of a run, and its files, from episodes that are written down here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest

from mstar_rt.client.control.action_queue import RobotAction
from mstar_rt.client.control.results import ActionChunk, ControlStats
from mstar_rt.client.results import NodeTime, Timing
from sim_bridge.policy_dashboard import COLUMNS, cells
from sim_bridge.policy_episode import PolicyEpisode, TickRecord
from sim_bridge.policy_fleet import FleetRun, PolicySetting
from sim_bridge.policy_recorder import plot_seams, save_video
from sim_bridge.policy_summary import summarize_run

TIMING = Timing(200.0, 1000.0, {"denoise": NodeTime(5, 0.0, 5000.0, 10)}, {}, 500.0, 300.0, 9000.0)


def _chunk(seq: int, delay_assumed: int, num_consumed: int) -> ActionChunk:
    actions = np.full((16, 2), 0.001 * seq, np.float32)
    return ActionChunk(seq, 1, actions, delay_assumed, num_consumed, 5, 0.020, "go", TIMING, "", ())


def _tick(kind: str, value_m: float, seq: int | None = None) -> TickRecord:
    action = RobotAction(kind, np.array([value_m, 0.0]), seq, None if seq is None else 0)  # type: ignore[arg-type]
    return TickRecord(action, 0.001, np.array([value_m, 0.0]), np.array([0.1, 0.1]))


def _episode(success: bool) -> PolicyEpisode:
    """Waits two ticks, five actions of chunk 1, starves, five of chunk 2, a seam of 30 mm, five of chunk 3."""
    ticks = [_tick("hold", 0.0), _tick("hold", 0.0)]
    ticks += [_tick("chunk", 0.002 * index, 1) for index in range(5)]
    ticks += [_tick("hold", 0.008)]
    ticks += [_tick("chunk", 0.010 + 0.002 * index, 2) for index in range(5)]
    ticks += [_tick("chunk", 0.050 + 0.002 * index, 3) for index in range(5)]
    return PolicyEpisode("corner", 1, success, ticks, [_chunk(1, 0, 0), _chunk(2, 2, 5), _chunk(3, 5, 4)])


def _stats(**counted: Any) -> ControlStats:
    """What is used here of a session's counts; all others are none."""
    nothing: dict[str, Any] = dict.fromkeys(("waiting_ticks", "starvation_ticks", "stop_ticks"), 0)
    nothing |= dict.fromkeys(("seam_jumps", "action_ages_s", "chunk_latencies_s", "delays"), np.empty(0))
    return cast(ControlStats, SimpleNamespace(**{**nothing, "chunks": {}, "events": {}, **counted}))


STATS = _stats(
    starvation_ticks=1,
    waiting_ticks=2,
    chunks={"used": 3, "past": 1},
    events={"connected": 1, "dropped_late": 2},
    seam_jumps=np.array([0.030]),
    action_ages_s=np.array([0.1, 0.2, 0.3]),
    chunk_latencies_s=np.array([0.02, 0.03]),
    delays=np.array([0.0, 5.0, 4.0]),
)


def _run(chunking: str | None = "prefix") -> FleetRun:
    setting = PolicySetting(chunking, 0.3, 5, 2)
    return FleetRun(setting, [_episode(True), _episode(False)], [STATS, STATS])


def test_a_row_of_the_table() -> None:
    row = summarize_run(_run())
    assert row["success_rate"] == 0.5
    assert row["success_by_task"] == {"corner": 0.5}
    assert row["median_success_s"] == pytest.approx(0.9)
    assert row["typical_step_mm"] == pytest.approx(2.0)
    assert row["seam_jump_mm"] == {"p50": 30.0, "p95": 30.0}
    assert row["seam_jump_over_step"]["p50"] == pytest.approx(15.0)
    assert (row["num_ticks"], row["waiting_ticks"], row["starvation_ticks"]) == (36, 4, 2)
    assert row["action_age_ms"]["p50"] == pytest.approx(200.0)
    assert row["mean_batch"] == pytest.approx(3.0)
    assert row["chunk_split_ms"]["network_and_client"] == pytest.approx(11.0)
    assert len(cells(row)) == len(COLUMNS)


def test_what_counts_as_a_miss() -> None:
    """Per episode chunk 2, which came to a robot that held and was reckoned for 2 actions instead of 5, once; besides a
    chunk of the past and two dropped observations per session."""
    assert summarize_run(_run())["deadline_misses"] == 2 * (1 + 1 + 2)
    assert summarize_run(_run())["num_chunks"] == 8
    assert summarize_run(_run())["deadline_miss_rate"] == pytest.approx(8 / 12, abs=1e-4)


def test_a_delay_is_reckoned_with_where_a_chunk_is_made_for_it() -> None:
    episode = _episode(True)
    episode.ticks = [tick for tick in episode.ticks if tick.action.kind == "chunk"]
    run = replace(_run(), episodes=[episode], stats=[_stats(chunks={"used": 3})])
    for chunking, num_missed in ((None, 0), ("temporal_ensemble", 0), ("prefix", 1), ("guided", 1)):
        run = replace(run, setting=replace(run.setting, chunking=chunking))
        assert summarize_run(run)["deadline_misses"] == num_missed


def test_a_run_in_which_nothing_came() -> None:
    """An overloaded machine: not one chunk; the table says so."""
    episode = PolicyEpisode("corner", 1, ticks=[_tick("hold", 0.0)])
    row = summarize_run(FleetRun(PolicySetting(None, 0.0, 5, 1), [episode], [_stats()]))
    assert row["success_rate"] == 0.0
    assert (row["jerk_ratio"], row["typical_step_mm"], row["seam_jump_over_step"]) == (None, None, {})
    assert cells(row).count("-") == 5


def test_pictures_and_video_are_written(tmp_path: Path) -> None:
    rows = {"off": [_episode(True), _episode(False)], "on": [_episode(True), _episode(True)]}
    video = cv2.VideoCapture(str(save_video(tmp_path / "episodes.mp4", rows)))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == len(_episode(True).ticks)
    plot = cv2.imread(str(plot_seams(tmp_path / "seams", {name: episodes[0] for name, episodes in rows.items()})))
    assert plot is not None
    assert plot.shape[0] > 300
    assert plot.std() > 5
