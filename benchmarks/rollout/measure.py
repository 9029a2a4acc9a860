"""Measures one case after the other and writes the report; runs in a process with a worker's settings."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from benchmarks.report import Check, Report, Row, finish, percentile_rows
from benchmarks.report.timing import alternate
from benchmarks.rollout.cases import MIN_OVER_NATIVE, Case, cases, min_of_cached
from benchmarks.rollout.plot import plot
from benchmarks.rollout.systems import CACHED, NATIVE, SERVED, Systems
from benchmarks.served.deployment import Target, target
from benchmarks.served.worker_process import THREADS, arguments

MAX_ERROR = 1e-4
"""Of any number of any latent, float32: native against the others."""

MAX_OVER_AUTOCAST, ROUNDING = 1.5, 2e-3
"""bfloat16: the mean error may be so many times that of the native loop under autocast, and a little more."""

NATIVE_SHARE = 0.35
"""Per round the quick systems are called again until they have taken this share of the native loop's time."""

References = dict[tuple[str, int], list[np.ndarray]]
"""What the native loop gives in float32, by size and number of sequences: the actions are the same for all horizons."""

Runs = dict[str, Callable[[], object]]

FROM_A_FRAME = (1, 8)
NUM_CLIENTS, AT_ONCE_HORIZON = 8, 8


def main() -> int:
    server, args = arguments()
    settings = {
        "threads": THREADS, "context": "latents of one frame", "quick": args.quick,
        "answer": "every latent, streamed", "rounds of the native loop": "at least 3",
    }  # fmt: skip
    report = Report("rollout", settings)
    references: References = {}
    with target(server) as reached:
        for case in cases(args.quick):
            _measure(report, case, reached, references)
    return finish(report, args, plot)


def _measure(report: Report, case: Case, reached: Target, references: References) -> None:
    systems = Systems(case, reached)
    _check_equal(report, case, systems, references)
    for horizon in case.horizons:
        _time(report, case, systems, horizon)
    if (case.size, case.num_sequences) == ("middle", 1):
        _at_once(report, case, systems)
    _state_memory(report, case, reached)


def _check_equal(report: Report, case: Case, systems: Systems, references: References) -> None:
    """All latents of the longest rollout, and of every horizon of the quick systems, before anything is timed."""
    longest = max(case.horizons)
    key = (case.size, case.num_sequences)
    if len(references.get(key, ())) < longest:
        references[key] = systems.native(longest, torch.float32)
    expected = references[key][:longest]
    quick = {SERVED: systems.served, CACHED: systems.cached}
    name = f"{case.name(longest)}: difference from the {NATIVE} in float32"
    if case.dtype == "float32":
        for system, run in quick.items():
            error = float(np.max([_largest_error(run(h), expected[:h]) for h in case.horizons]))
            report.rows.append(Row(name, system, "largest", error * 1e6, "1e-6"))
            assert error <= MAX_ERROR, f"{case}: {system} differs from {NATIVE} by {error}"
        return
    autocast = _mean_error(systems.native(longest), expected)
    report.rows.append(Row(name, NATIVE, "mean", autocast * 1e3, "1e-3"))
    for system, run in quick.items():
        error = _mean_error(run(longest), expected)
        report.rows.append(Row(name, system, "mean", error * 1e3, "1e-3"))
        assert error <= MAX_OVER_AUTOCAST * autocast + ROUNDING, f"{system} is off by {error}, autocast by {autocast}"


def _largest_error(latents: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return float(np.max([np.abs(a - b).max() for a, b in zip(latents, expected, strict=True)]))


def _mean_error(latents: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.abs(a - b).mean() for a, b in zip(latents, expected, strict=True)]))


def _time(report: Report, case: Case, systems: Systems, horizon: int) -> None:
    runs: Runs = {
        NATIVE: functools.partial(systems.native, horizon),
        SERVED: functools.partial(systems.served, horizon),
        CACHED: functools.partial(systems.cached, horizon),
    }
    took_s = [_seconds(run) for system, run in runs.items() if system != NATIVE]
    fitting = _native_estimate_s(systems, horizon) * NATIVE_SHARE / sum(took_s)
    turns = min(max(round(fitting), 1), -(-case.calls // 3))
    systems.step_seconds.clear()
    name = case.name(horizon)
    median = _timed_rows(report, name, runs, case.budget_s, {system: turns for system in runs if system != NATIVE})
    for system in (CACHED, SERVED):
        report.rows.append(Row(name, system, "speed-up over native", median[NATIVE] / median[system], "x"))
    over_native = median[NATIVE] / median[SERVED]
    asked = MIN_OVER_NATIVE.get((case.size, case.num_sequences, horizon, case.dtype))
    if asked is not None:
        report.checks.append(Check.at_least(f"served over native, {name}", over_native, asked))
    _against_cached(report, name, median, min_of_cached(case, horizon))
    if horizon == max(case.horizons):
        _fit_steps(report, case, systems.step_seconds, horizon)
    if case.size == "middle" and horizon in FROM_A_FRAME:
        _from_a_frame(report, case, systems, horizon)


def _timed_rows(
    report: Report, name: str, runs: Runs, budget_s: float, turns: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Time all systems in turn; returns the median seconds of each."""
    seconds = alternate(runs, budget_s, num_warmups=0, turns=turns)
    for system, values in seconds.items():
        report.rows += percentile_rows(name, system, values)
        report.rows.append(Row(name, system, "calls", len(values), ""))
    return {system: float(np.median(values)) for system, values in seconds.items()}


def _against_cached(report: Report, name: str, median: Mapping[str, float], asked: float | None) -> None:
    share = median[CACHED] / median[SERVED]
    report.rows.append(Row(name, SERVED, "speed of the cached loop", share, "x"))
    if asked is not None:
        report.checks.append(Check.at_least(f"served, share of the cached loop's speed, {name}", share, asked))


def _from_a_frame(report: Report, case: Case, systems: Systems, horizon: int) -> None:
    """The same with a camera frame as the context, which all encode with our encoder."""
    runs: Runs = {
        SERVED: functools.partial(systems.served_from_frame, horizon),
        CACHED: functools.partial(systems.cached_from_frame, horizon),
    }
    name = f"{case.name(horizon)}, from a frame"
    median = _timed_rows(report, name, runs, case.budget_s / 2)
    _against_cached(report, name, median, min_of_cached(case, horizon))


def _at_once(report: Report, case: Case, systems: Systems) -> None:
    """Several clients with one rollout each, which the server batches, beside the cached loop, one after the other."""
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        runs: Runs = {
            SERVED: lambda: list(clients.map(systems.served, [AT_ONCE_HORIZON] * NUM_CLIENTS)),
            CACHED: lambda: [systems.cached(AT_ONCE_HORIZON) for _ in range(NUM_CLIENTS)],
        }
        name = f"{case.name(AT_ONCE_HORIZON)}, {NUM_CLIENTS} clients at once, all of them"
        _against_cached(report, name, _timed_rows(report, name, runs, case.budget_s / 2), None)


def _fit_steps(report: Report, case: Case, step_seconds: Mapping[str, list[list[float]]], horizon: int) -> None:
    """What one more step costs, t being the frames before it: a + b t by least squares over the medians."""
    if horizon < 8:
        return
    for system in (CACHED, SERVED):
        steps_ms = np.median(np.diff(np.array(step_seconds[system]), axis=1), axis=0) * 1e3
        frames = np.arange(1, horizon)
        slope, constant = np.polyfit(frames, steps_ms, 1)
        departure = np.abs(steps_ms / (constant + slope * frames) - 1).max()
        name = f"{case.name(horizon)}: a step after t frames costs a + b t"
        report.rows.append(Row(name, system, "a", float(constant), "ms"))
        report.rows.append(Row(name, system, "b", float(slope), "ms"))
        report.rows.append(Row(name, system, "b over a", float(slope / constant) * 100, "%"))
        report.rows.append(Row(name, system, "largest departure", float(departure) * 100, "%"))


def _state_memory(report: Report, case: Case, reached: Target) -> None:
    """Keys and values of one frame of one action sequence: one page of the cache."""
    spec = next(iter(reached.models[case.size].caches.values()))
    num_bytes = spec.page_bytes(2 if case.dtype == "bfloat16" else 4)
    name = f"{case.size} {case.dtype}"
    row = Row(name, SERVED, "cache per candidate-frame", num_bytes / 1e3, "kB")
    if row not in report.rows:
        report.rows.append(row)


def _native_estimate_s(systems: Systems, horizon: int) -> float:
    """From the time of a rollout that is not long: short ones are tried, long ones grow with the square or faster."""
    short = min(horizon, 4)
    return _seconds(functools.partial(systems.native, short)) * (horizon / short) ** 2


def _seconds(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    raise SystemExit(main())
