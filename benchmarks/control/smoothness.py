"""How smooth the tabletop robots move with each kind of chunking, with more and more delay on the way back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.control import POLICY
from benchmarks.report import Report, Row
from sim_bridge.instruction_tasks import TASKS
from sim_bridge.policy_fleet import PolicySetting, run_setting
from sim_bridge.policy_summary import summarize_run

MODES = (None, "guided_identity", "guided", "prefix", "temporal_ensemble")
REPLAN_EVERY = 5
FIRST_SEED = 40_000


@dataclass(frozen=True)
class Effort:
    """The robots of all modes move at once, one of each mode, `episodes` one after the other."""

    delays_ms: tuple[int, ...]
    tasks: tuple[str, ...]
    episodes: int


QUICK = Effort((0, 300), ("corner",), 1)
FULL = Effort((0, 100, 200, 300, 400), tuple(TASKS), 4)


async def measure(report: Report, address: str, quick: bool) -> None:
    effort = QUICK if quick else FULL
    episodes = [(effort.tasks[i % len(effort.tasks)], FIRST_SEED + i) for i in range(effort.episodes)]
    for delay_ms in effort.delays_ms:
        settings = [PolicySetting(mode, delay_ms / 1e3, REPLAN_EVERY, 1, POLICY) for mode in MODES]
        runs = await asyncio.gather(*(run_setting(address, setting, episodes) for setting in settings))
        report.rows += [row for run in runs for row in rows_of(delay_ms, summarize_run(run))]


def rows_of(delay_ms: int, summary: Mapping[str, Any]) -> list[Row]:
    """Figures that a run has: without a second chunk there is no seam."""
    ticks = max(1, summary["num_ticks"])
    figures: Sequence[tuple[str, float | None, str]] = (
        ("success", 100 * summary["success_rate"], "%"),
        ("seam p50", summary["seam_jump_mm"].get("p50"), "mm"),
        ("seam p95", summary["seam_jump_mm"].get("p95"), "mm"),
        ("seam p50 over step", summary["seam_jump_over_step"].get("p50"), "x"),
        ("jerk ratio", summary["jerk_ratio"], "x"),
        ("starved", 100 * (summary["starvation_ticks"] + summary["stop_ticks"]) / ticks, "%"),
        ("action age p50", summary["action_age_ms"].get("p50"), "ms"),
        ("age p99", summary["action_age_ms"].get("p99"), "ms"),
        ("late chunks", 100 * summary["deadline_miss_rate"], "%"),
        ("chunks", summary["num_chunks"], ""),
    )
    case = f"{delay_ms} ms added"
    return [
        Row(case, summary["chunking"], metric, float(value), unit)
        for metric, value, unit in figures
        if value is not None and math.isfinite(value)
    ]
