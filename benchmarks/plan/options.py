"""What each option of the served planner costs or saves, against the plain search of the same size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.plan.search import ITERATIONS, SAMPLES, SEEDS, served_options
from benchmarks.report import Report, Row, percentile_rows
from benchmarks.report.timing import alternate
from benchmarks.served.deployment import Target, model_name
from benchmarks.served.inputs import Scene, random_actions, scene
from mstar_rt.client import Client, Plan

HORIZON, LONG_HORIZON = 4, 8
NUM_CONTEXT = 4
OPTIONS = ", what an option costs"
PLAIN = f"cem, {SAMPLES} samples, {ITERATIONS} iterations"
BUDGET_SHARE = 0.5
"""Of the time that the plain search takes: what an anytime plan is given."""


@dataclass(frozen=True)
class Variant:
    """One plan request, named after the options in which it differs from the plain search."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    num_goals: int = 1
    num_context: int = 1


VARIANTS = (
    Variant(PLAIN),
    Variant("bfloat16", dtype="bfloat16"),
    Variant("tree_branching 8 2 2 2", {"tree_branching": (8, 2, 2, 2)}),
    Variant("tree_branching 8 2 2 2, bfloat16", {"tree_branching": (8, 2, 2, 2)}, dtype="bfloat16"),
    Variant("include_mean", {"include_mean": True}),
    Variant("keep_elites", {"keep_elites": True}),
    Variant(
        "keep_elites, include_mean, 32 samples, 2 iterations",
        {"keep_elites": True, "include_mean": True, "num_samples": 32, "num_iterations": 2},
    ),
    Variant("planner mppi", {"planner": "mppi"}),
    Variant(
        "planner mppi, 32 samples, 2 iterations",
        {"planner": "mppi", "num_samples": 32, "num_elites": 6, "num_iterations": 2},
    ),
    Variant("convergence_tolerance 4 cm", {"convergence_tolerance": 0.04}),
    Variant("cost l2", {"cost": "l2"}),
    Variant("cost cosine", {"cost": "cosine"}),
    Variant("goal_use per_step", {"goal_use": "per_step"}, num_goals=HORIZON),
    Variant("goal_use nearest of 3", {"goal_use": "nearest"}, num_goals=3),
    Variant(f"context of {NUM_CONTEXT} frames, sent", num_context=NUM_CONTEXT),
    Variant(f"H={LONG_HORIZON}", {"rollout_horizon": LONG_HORIZON}),
    Variant(f"H={LONG_HORIZON}, context_window 4", {"rollout_horizon": LONG_HORIZON, "context_window": 4}),
)


def measure(report: Report, size: str, reached: Target, budget_s: float) -> None:
    """All variants in turn, then the ones that need a session or a budget beside them."""
    view = scene(reached.models[model_name(size, "float32")])
    runs = {variant.name: functools.partial(_plan, reached.client, size, view, variant) for variant in VARIANTS}  # type: dict[str, Callable[[], Plan]]
    with ExitStack() as sessions:
        runs["session, warm_start, 1 iteration"] = sessions.enter_context(_warm(reached.client, size, view))
        runs[f"session, context of {NUM_CONTEXT} frames, kept"] = sessions.enter_context(
            _history(reached.client, size, view)
        )
        plans = {name: run() for name, run in runs.items()}
        budget_ms = min(runs[PLAIN]().timing.total_us for _ in range(3)) / 1e3 * BUDGET_SHARE
        anytime = f"budget_ms {BUDGET_SHARE:g} of the plain search"
        runs[anytime] = functools.partial(_plan, reached.client, size, view, Variant(anytime, {"budget_ms": budget_ms}))
        plans[anytime] = runs[anytime]()
        seconds = alternate(runs, budget_s, num_warmups=0, max_rounds=20)
    case = f"{size} H={HORIZON}{OPTIONS}"
    plain_s = float(np.median(seconds[PLAIN]))
    for name, values in seconds.items():
        report.rows += percentile_rows(case, name, values)
        report.rows.append(Row(case, name, "speed of the plain search", plain_s / float(np.median(values)), "x"))
        report.rows.append(Row(case, name, "iterations", plans[name].num_iterations, ""))
        report.rows.append(Row(case, name, "best cost", plans[name].cost, ""))
    report.rows.append(Row(f"{size}, anytime", anytime, "budget", budget_ms, "ms"))


def is_option_case(case: str) -> bool:
    return case.endswith(OPTIONS)


def _plan(client: Client, size: str, view: Scene, variant: Variant) -> Plan:
    goals = np.concatenate([view.goal] * variant.num_goals)
    past: dict[str, Any] = {}
    if variant.num_context > 1:
        past["context_actions"] = random_actions(1, variant.num_context - 1)[0]
    return client.plan(
        model_name(size, variant.dtype), np.concatenate([view.frames] * variant.num_context), goals, view.state,
        seed=SEEDS[0], **past, **(served_options(HORIZON) | variant.options),
    )  # fmt: skip


@contextmanager
def _warm(client: Client, size: str, view: Scene) -> Iterator[Callable[[], Plan]]:
    """Plans of a session, each from the one before, with one iteration."""
    with client.session(model_name(size, "float32"), **served_options(HORIZON)) as session:
        session.set_goal(view.goal)
        session.observe(view.frames[0], view.state)
        session.plan()
        yield functools.partial(session.plan, warm_start=True, num_iterations=1)


@contextmanager
def _history(client: Client, size: str, view: Scene) -> Iterator[Callable[[], Plan]]:
    """Plans of a session that has observed several frames and keeps their cache."""
    with client.session(model_name(size, "float32"), context_window=16, **served_options(HORIZON)) as session:
        session.set_goal(view.goal)
        session.observe(view.frames[0], view.state)
        for action in random_actions(1, NUM_CONTEXT - 1)[0]:
            session.observe(view.frames[0], view.state, executed_action=action)
        yield session.plan


assert math.prod((8, 2, 2, 2)) == SAMPLES
