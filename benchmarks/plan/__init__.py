"""Plans of the cross-entropy method: the published loop, the same nodes in a plain loop, and served over gRPC."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from benchmarks.native import planner
from benchmarks.report import Check, Report, Row, finish, percentile_rows
from benchmarks.report.timing import alternate
from benchmarks.served.deployment import Target, running
from benchmarks.served.inputs import Scene, scene
from benchmarks.served.plain_loop import PlainLoop
from mstar_rt.client import Plan
from world_models.vjepa2.nodes import Encode

SAMPLES, ELITES, ITERATIONS = 64, 10, 3
MAX_ACTION_ERROR = 1e-4
PINNED = {2: 0.0, 3: 0.0}
QUICK = {"small": (1, 2, 3), "middle": (1,)}
FULL = {"small": (1, 2, 3, 4), "middle": (1, 2, 4)}
ASKED = {1: 1.15, 2: 2.0, 4: 3.8}
NATIVE, PLAIN, SERVED = "native loop", "same nodes, plain loop", "served over gRPC"


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    torch.set_num_threads(1)
    report = Report(
        "plan", {"samples": SAMPLES, "iterations": ITERATIONS, "dtype": "float32", "threads": 1, "quick": args.quick}
    )
    with running() as target:
        for name, horizons in (QUICK if args.quick else FULL).items():
            loop = PlainLoop(target.models[name], target.config.workers[0])
            for horizon in horizons:
                _measure(report, target, name, loop, horizon, budget_s=2.0 if args.quick else 20.0)
    return finish(report, args)


def _measure(report: Report, target: Target, name: str, loop: PlainLoop, horizon: int, budget_s: float) -> None:
    view = scene(target.models[name])
    options: dict[str, Any] = {
        "rollout_horizon": horizon,
        "num_samples": SAMPLES,
        "num_elites": ELITES,
        "num_iterations": ITERATIONS,
        "seed": 7,
    }
    named_pins = {"pinned_dims": tuple(map(float, PINNED)), "pinned_values": tuple(PINNED.values())}
    tensors = {"frames": view.frames, "goal_frames": view.goal, "state": view.state}

    def served() -> Plan:
        return target.client.plan(name, view.frames, view.goal, view.state, pinned=PINNED, **options)

    systems = {
        NATIVE: lambda: _native(loop, view, horizon),
        PLAIN: lambda: loop.plan(tensors, options | named_pins),
        SERVED: lambda: served().actions,
    }
    _check_equal({system: np.asarray(run()) for system, run in systems.items()})
    num_steps_before = loop.num_predict_steps
    systems[PLAIN]()
    assert loop.num_predict_steps - num_steps_before == horizon * ITERATIONS, "the plain loop skipped steps"
    timing = served().timing
    assert timing.nodes["predict"].num_steps == horizon * ITERATIONS, "the served plan skipped steps"
    case = f"{name} H={horizon}"
    seconds = alternate(systems, budget_s)
    for system, values in seconds.items():
        report.rows += percentile_rows(case, system, values)
    median = {system: float(np.median(values)) for system, values in seconds.items()}
    report.rows.append(Row(case, SERVED, "speed-up over native", median[NATIVE] / median[SERVED], "x"))
    report.rows.append(Row(case, SERVED, "time over plain loop", median[SERVED] / median[PLAIN], "x"))
    step_ms = timing.nodes["predict"].run_us / 1e3 / horizon / ITERATIONS
    report.rows.append(Row(case, SERVED, "predict step", step_ms, "ms"))
    if name == "middle":
        speedup = median[NATIVE] / median[SERVED]
        report.checks.append(Check.at_least(f"served over native, {case}", speedup, ASKED[horizon]))


def _native(loop: PlainLoop, view: Scene, horizon: int) -> np.ndarray:
    encode = loop.loaded.engines["encode"]._code  # type: ignore[attr-defined]
    predict = loop.loaded.engines["predict"]._code  # type: ignore[attr-defined]
    assert isinstance(encode, Encode)
    with torch.inference_mode():
        context, goal = (encode.encode([torch.from_numpy(f)])[0][0] for f in (view.frames, view.goal))
    settings = planner.NativeSettings(horizon, SAMPLES, ELITES, ITERATIONS, axis=PINNED)
    return planner.plan(predict._predictor, context, goal, torch.from_numpy(view.state), settings, seed=7).numpy()


def _check_equal(actions: dict[str, np.ndarray]) -> None:
    for system, value in actions.items():
        error = float(np.abs(value - actions[NATIVE]).max())
        assert error <= MAX_ACTION_ERROR, f"{system} differs from {NATIVE} by {error}"
