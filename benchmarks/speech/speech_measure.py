"""One speech case after the other: audio compared first, then waves of all systems in turn."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.report import Check, Report, Row
from benchmarks.speech.cases import (
    GREEDY,
    LONG_S,
    MIN_EARLIER,
    MIN_SPEED_ALONE,
    MIN_SPEED_OF_EIGHT,
    Case,
)
from benchmarks.speech.heard import Wave, figures
from benchmarks.speech.speech_systems import NAIVE, SERVED, STAGES, SpeechSystems

MAX_ERROR = 1e-4
"""Of any sample, float32: other order of sums."""

MIN_LOUDNESS = 0.02
"""Standard deviation of the samples."""


async def measure_speech(report: Report, case: Case, systems: SpeechSystems) -> None:
    await _check_equal(report, case, systems)
    for num_streams in case.streams:
        await _time(report, case, systems, num_streams)


async def _check_equal(report: Report, case: Case, systems: SpeechSystems) -> None:
    """All samples of as many greedy utterances as are measured at once; it warms up, too."""
    greedy, num_streams = dataclasses.replace(case, sampling=GREEDY), max(case.streams)
    name = f"{greedy.name(num_streams)}: difference from the {NAIVE}"
    naive = await systems.run(NAIVE, greedy, num_streams)
    for system in (STAGES, SERVED):
        wave = await systems.run(system, greedy, num_streams)
        error = max(float(np.abs(a.audio - b.audio).max()) for a, b in zip(wave, naive, strict=True))
        row = Row(name, system, "largest", error * 1e6, "1e-6")
        if row not in report.rows:
            report.rows.append(row)
        assert error <= MAX_ERROR, f"{name}: {system} is off by {error}"
    loudness = np.concatenate([heard.audio for heard in naive]).std()
    assert loudness > MIN_LOUDNESS, f"{name}: there is next to nothing to compare"


async def _time(report: Report, case: Case, systems: SpeechSystems, num_streams: int) -> None:
    """With one utterance `STAGES` is `NAIVE`."""
    name = case.name(num_streams)
    compared = [NAIVE, SERVED] if num_streams == 1 else [NAIVE, STAGES, SERVED]
    waves: dict[str, list[Wave]] = {system: [] for system in compared}
    for _ in range(case.num_rounds):
        for system in compared:
            waves[system].append(await systems.run(system, case, num_streams))
    found = {system: figures(of_system) for system, of_system in waves.items()}
    for system, values in found.items():
        report.rows += [Row(name, system, metric, value, unit) for (metric, unit), value in values.items()]
    compare(report, case, num_streams, found)


def compare(report: Report, case: Case, num_streams: int, found: dict[str, dict[tuple[str, str], float]]) -> None:
    """Throughput over each native system, and how much earlier the first audio comes."""
    name, served = case.name(num_streams), found[SERVED]
    for system in found.keys() - {SERVED}:
        faster = served["audio", "s/s"] / found[system]["audio", "s/s"]
        earlier = found[system]["first audio", "ms"] / served["first audio", "ms"]
        report.rows.append(Row(f"{name}: served over {system}", SERVED, "throughput", faster, "x"))
        report.rows.append(Row(f"{name}: served over {system}", SERVED, "first audio earlier", earlier, "x"))
        asked = {1: MIN_SPEED_ALONE, 8: MIN_SPEED_OF_EIGHT}.get(num_streams)
        if asked is not None and system == NAIVE:
            report.checks.append(Check.at_least(f"served over {system}, throughput, {name}", faster, asked))
        if case.seconds == LONG_S:
            report.checks.append(Check.at_least(f"first audio, {system} over served, {name}", earlier, MIN_EARLIER))
