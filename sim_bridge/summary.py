"""What a fleet's episodes add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim_bridge.episode import EpisodeResult

PERCENTILES = (50, 95, 99)


def percentiles_ms(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of milliseconds; empty without values."""
    if not values:
        return {}
    return {f"p{p}": round(float(v), 2) for p, v in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}


def plan_split_ms(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Mean milliseconds of one plan by where they went: each node's steps, waiting for them, server edge, the rest.

    A step that several robots share counts in full for each of them, as each waits for it.
    """
    timings = [plan.timing for result in results for plan in result.plans]
    if not timings:
        return {}
    split: dict[str, float] = {}
    for timing in timings:
        for name, node in timing.nodes.items():
            split[name] = split.get(name, 0.0) + node.run_us
        split["queue"] = split.get("queue", 0.0) + timing.queue_us
        split["decode"] = split.get("decode", 0.0) + timing.decode_us
        split["encode_answer"] = split.get("encode_answer", 0.0) + timing.encode_us
        nodes_us = sum(node.run_us for node in timing.nodes.values())
        rest_us = timing.total_us - nodes_us - timing.queue_us - timing.decode_us - timing.encode_us
        split["runtime"] = split.get("runtime", 0.0) + max(rest_us, 0.0)
    seen_us = 1e3 * sum(sum(result.plan_ms) for result in results)
    split["network_and_client"] = max(seen_us - sum(timing.total_us for timing in timings), 0.0)
    return {name: round(total / len(timings) / 1e3, 3) for name, total in split.items()}


def mean_batch(results: Sequence[EpisodeResult], node: str) -> float:
    """Mean number of requests that shared a step of `node`."""
    times = [plan.timing.nodes[node] for result in results for plan in result.plans if node in plan.timing.nodes]
    num_steps = sum(time.num_steps for time in times)
    return 1.0 + sum(time.batched_with for time in times) / num_steps if num_steps else 0.0


def summarize(results: Sequence[EpisodeResult], random_rates: Mapping[str, float]) -> dict[str, Any]:
    """The content of summary.json. `random_rates` are a random policy's success rates by task."""
    by_task = {kind: [r for r in results if r.kind == kind] for kind in random_rates}
    all_plan_ms = [ms for result in results for ms in result.plan_ms]
    return {
        "num_episodes": len(results),
        "success_rate": _success_rate(results),
        "random_policy_success_rate": float(np.mean(list(random_rates.values()))),
        "tasks": {
            kind: {
                "num_episodes": len(group),
                "success_rate": _success_rate(group),
                "random_policy_success_rate": random_rates[kind],
                "median_start_distance_mm": _median_mm([r.start_distance_m for r in group]),
                "median_final_distance_mm": _median_mm([r.final_distance_m for r in group]),
                "plan_ms": percentiles_ms([ms for r in group for ms in r.plan_ms]),
            }
            for kind, group in by_task.items()
        },
        "plan_ms": percentiles_ms(all_plan_ms),
        "plan_split_ms": plan_split_ms(results),
        "mean_predict_batch": round(mean_batch(results, "predict"), 2),
        "num_plans": len(all_plan_ms),
        "ticks": sum(result.num_ticks for result in results),
        "missed_ticks": sum(result.num_missed for result in results),
        "episodes": [
            {
                "task": r.kind,
                "seed": r.seed,
                "success": r.success,
                "start_distance_mm": round(r.start_distance_m * 1e3, 1),
                "final_distance_mm": round(r.final_distance_m * 1e3, 1),
                "ticks": r.num_ticks,
                "missed_ticks": r.num_missed,
            }
            for r in results
        ],
        "errors": sum(r.error is not None for r in results),
        "error_messages": [f"{r.kind} {r.seed}: {r.error}" for r in results if r.error is not None],
    }


def _success_rate(results: Sequence[EpisodeResult]) -> float:
    return sum(result.success for result in results) / len(results) if results else 0.0


def _median_mm(distances_m: Sequence[float]) -> float:
    return round(float(np.median(distances_m)) * 1e3, 1) if distances_m else float("nan")
