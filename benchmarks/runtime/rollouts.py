"""What serving a real model costs: the same nodes called in a plain Python loop, and served over gRPC, in one run."""

from __future__ import annotations

import numpy as np

from benchmarks.report import Report, Row, percentile_rows
from benchmarks.report.timing import alternate
from benchmarks.served.deployment import Target, running
from benchmarks.served.inputs import random_actions, scene
from benchmarks.served.plain_loop import PlainLoop

PLAIN, SERVED = "same nodes, plain loop", "served over gRPC"
MAX_LATENT_ERROR = 1e-4


def measure(report: Report, budget_s: float) -> None:
    """`budget_s` is that of one case."""
    with running() as target:
        for name in ("small", "middle"):
            loop = PlainLoop(target.models[name], target.config.workers[0])
            for num_sequences, horizon in ((1, 1), (1, 8), (16, 8)):
                _rollout(report, target, name, loop, num_sequences, horizon, budget_s)


def _rollout(
    report: Report, target: Target, name: str, loop: PlainLoop, num_sequences: int, horizon: int, budget_s: float
) -> None:
    view, actions = scene(target.models[name]), random_actions(num_sequences, horizon)
    tensors = {"frames": view.frames, "state": view.state, "actions": actions}

    def served() -> list[np.ndarray]:
        return [np.asarray(step.latent) for step in target.client.rollout(name, view.frames, actions, view.state)]

    expected, got = loop.rollout(tensors), served()
    assert len(expected) == len(got) == horizon, "one of the systems skipped steps"
    error = max(float(np.abs(a - b).max()) for a, b in zip(expected, got, strict=True))
    assert error <= MAX_LATENT_ERROR, f"the served latents differ by {error}"
    case = f"{name} rollout B={num_sequences} H={horizon}"
    seconds = alternate({PLAIN: lambda: loop.rollout(tensors), SERVED: served}, budget_s)
    for system, values in seconds.items():
        report.rows += percentile_rows(case, system, values)
    plain_s, served_s = (float(np.median(seconds[system])) for system in (PLAIN, SERVED))
    report.rows.append(Row(case, SERVED, "time over plain loop", served_s / plain_s, "x"))
    report.rows.append(Row(case, SERVED, "runtime per step", (served_s - plain_s) / horizon * 1e3, "ms"))
    report.rows.append(Row(case, PLAIN, "step", plain_s / horizon * 1e3, "ms"))
