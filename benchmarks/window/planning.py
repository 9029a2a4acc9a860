"""Tabletop tasks planned by a session that keeps a history, and by one that sees the newest frame alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.report import Report, Row
from mstar_rt.client import Client
from sim_bridge.demo_planner import PLANNER
from sim_bridge.tabletop import TabletopEnv
from sim_bridge.tasks import SUCCESS_DISTANCE_M, TASK_KINDS, TaskKind

MODEL = "small"
FIRST_SEED = 50_000
HISTORIES: dict[str, dict[str, int]] = {"the newest frame": {}} | {
    f"context_window {size}": {"context_window": size} for size in (2, 3, 5)
}
"""Options of the session, by name."""


def measure(report: Report, client: Client, num_tasks: int) -> None:
    """Every step observes, plans anew from the plan before, and executes the first action."""
    for kind in TASK_KINDS:
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in HISTORIES}
        for seed in range(FIRST_SEED, FIRST_SEED + num_tasks):
            for name, options in HISTORIES.items():
                results[name].append(_episode(client, kind, seed, options))
        for name, values in results.items():
            final_m, plan_ms = np.array(values).T
            case = f"{kind}, {num_tasks} tasks"
            report.rows += [
                Row(case, name, "success", float((final_m <= SUCCESS_DISTANCE_M).mean()), ""),
                Row(case, name, "median distance at the end", float(np.median(final_m)) * 1e3, "mm"),
                Row(case, name, "mean distance at the end", float(final_m.mean()) * 1e3, "mm"),
                Row(case, name, "plan, p50", float(np.median(plan_ms)), "ms"),
            ]


def _episode(client: Client, kind: TaskKind, seed: int, history: Mapping[str, Any]) -> tuple[float, float]:
    """Distance to the goal at the end, metres, and the median time of a plan, milliseconds."""
    env = TabletopEnv(kind)
    observation, info = env.reset(seed=seed)
    executed: dict[str, Any] = {}
    plan_ms, truncated = [], False
    with client.session(MODEL, **history, **PLANNER[kind]) as session:
        session.set_goal(env.task.goal_image)
        while not truncated:
            session.observe(observation["image"], observation["state"], **executed)
            plan = session.plan(warm_start=True)
            plan_ms.append(plan.timing.total_us / 1e3)
            observation, _, _, truncated, info = env.step(plan.actions[0])
            executed = {"executed_action": plan.actions[0]} if history else {}
    env.close()
    return info["distance_m"], float(np.median(plan_ms))
