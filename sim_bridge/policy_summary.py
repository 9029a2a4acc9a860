"""What a run of robots in the hands of a policy adds up to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim_bridge.policy_episode import PolicyEpisode
from sim_bridge.policy_fleet import FleetRun
from sim_bridge.smoothness import jerk_ratio, stretches, typical_step
from sim_bridge.tabletop_servo import CONTROL_HZ

DELAY_MODES = ("prefix", "guided", "guided_identity")
"""Chunking that is made for a certain delay."""
LOOP_NODE = "denoise"
"""The node whose steps the robots' chunks share."""


def summarize_run(run: FleetRun) -> dict[str, Any]:
    """One setting's row. Lengths are millimetres, times milliseconds."""
    episodes = run.episodes
    executed = [part for episode in episodes for part in stretches(tick.action for tick in episode.ticks)]
    ages_ms = 1e3 * np.concatenate([stats.action_ages_s for stats in run.stats])
    latencies_ms = 1e3 * np.concatenate([stats.chunk_latencies_s for stats in run.stats])
    seams_mm = 1e3 * np.concatenate([stats.seam_jumps for stats in run.stats])
    step_mm = 1e3 * typical_step(executed)
    events = sum((Counter(stats.events) for stats in run.stats), Counter[str]())
    num_chunks = sum(sum(stats.chunks.values()) for stats in run.stats)
    num_missed = _num_missed(episodes, run.setting.chunking in DELAY_MODES) + events["dropped_late"] + _num_past(run)
    return {
        "chunking": run.setting.chunking or "off",
        "added_delay_ms": 1e3 * run.setting.added_delay_s,
        "replan_every": run.setting.replan_every,
        "num_robots": run.num_robots,
        "refusals": run.refusals,
        "num_episodes": len(episodes),
        "success_rate": float(np.mean([episode.success for episode in episodes])),
        "success_by_task": _success_by_task(episodes),
        "median_success_s": _median_success_s(episodes),
        "typical_step_mm": _rounded(step_mm),
        "seam_jump_mm": _percentiles(seams_mm, (50, 95)),
        "seam_jump_over_step": _percentiles(seams_mm / step_mm, (50, 95)) if step_mm > 0 else {},
        "jerk_ratio": _rounded(jerk_ratio(executed)),
        "num_ticks": sum(len(episode.ticks) for episode in episodes),
        "waiting_ticks": sum(stats.waiting_ticks for stats in run.stats),
        "starvation_ticks": sum(stats.starvation_ticks for stats in run.stats),
        "stop_ticks": sum(stats.stop_ticks for stats in run.stats),
        "action_age_ms": _percentiles(ages_ms, (50, 99)),
        "deadline_misses": num_missed,
        "deadline_miss_rate": round(num_missed / max(1, num_chunks + events["dropped_late"]), 4),
        "num_chunks": num_chunks,
        "chunk_latency_ms": _percentiles(latencies_ms, (50, 95, 99)),
        "delay_actions": _percentiles(np.concatenate([stats.delays for stats in run.stats]), (50, 95, 100)),
        "mean_batch": round(_mean_batch(episodes), 2),
        "chunk_split_ms": _chunk_split_ms(episodes),
        "tick_late_ms": _percentiles(
            np.array([1e3 * tick.late_s for episode in episodes for tick in episode.ticks]), (50, 99)
        ),
        "events": dict(events),
        "errors": [f"{episode.task} {episode.seed}: {episode.error}" for episode in episodes if episode.error],
    }


def _num_missed(episodes: Sequence[PolicyEpisode], continued: bool) -> int:
    """Chunks that came when the robot had nothing left to do, or that reckoned with fewer consumed actions than there
    were.
    """
    num_missed = 0
    for episode in episodes:
        actions = [tick.action for tick in episode.ticks]
        first = next((index for index, action in enumerate(actions) if action.kind == "chunk"), len(actions))
        starved = {
            action.chunk_seq
            for before, action in zip(actions[first:], actions[first + 1 :], strict=False)
            if before.kind != "chunk" and action.kind == "chunk"
        }
        outrun = {chunk.seq for chunk in episode.chunks if continued and chunk.num_consumed > chunk.delay_assumed}
        num_missed += len(starved | outrun)
    return num_missed


def _num_past(run: FleetRun) -> int:
    return sum(stats.chunks.get("past", 0) for stats in run.stats)


def _success_by_task(episodes: Sequence[PolicyEpisode]) -> dict[str, float]:
    names = dict.fromkeys(episode.task for episode in episodes)
    return {name: float(np.mean([each.success for each in episodes if each.task == name])) for name in names}


def _median_success_s(episodes: Sequence[PolicyEpisode]) -> float | None:
    ticks = [len(episode.ticks) for episode in episodes if episode.success]
    return round(float(np.median(ticks)) / CONTROL_HZ, 2) if ticks else None


def _mean_batch(episodes: Sequence[PolicyEpisode]) -> float:
    """Mean number of robots whose chunks shared a step of the loop."""
    times = [chunk.timing.nodes[LOOP_NODE] for each in episodes for chunk in each.chunks]
    num_steps = sum(time.num_steps for time in times)
    return 1.0 + sum(time.batched_with for time in times) / num_steps if num_steps else 0.0


def _chunk_split_ms(episodes: Sequence[PolicyEpisode]) -> dict[str, float]:
    """Mean milliseconds of a chunk by where they went; a step that robots share counts in full for each of them."""
    chunks = [chunk for episode in episodes for chunk in episode.chunks]
    total: defaultdict[str, float] = defaultdict(float)
    for chunk in chunks:
        timing = chunk.timing
        for name, node in timing.nodes.items():
            total[name] += node.run_us
        total["queue"] += timing.queue_us
        total["edge"] += timing.decode_us + timing.encode_us
        total["server"] += timing.total_us
        total["network_and_client"] += timing.network_us(chunk.latency_s)
    return {name: round(us / len(chunks) / 1e3, 2) for name, us in total.items()}


def _rounded(value: float) -> float | None:
    """None for NaN, which JSON does not know."""
    return None if np.isnan(value) else round(value, 2)


def _percentiles(values: NDArray[np.floating], percentiles: Sequence[int]) -> Mapping[str, float]:
    """Empty without values. p100 is called max."""
    if not len(values):
        return {}
    names = ["max" if each == 100 else f"p{each}" for each in percentiles]
    return {name: round(float(value), 2) for name, value in zip(names, np.percentile(values, percentiles), strict=True)}
