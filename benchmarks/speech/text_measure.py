"""Text, ids compared first; and what the runtime adds to a step."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.report import Check, Report, Row, percentile_rows
from benchmarks.speech.cases import MIN_OF_GENERATE, TextCase
from benchmarks.speech.text_systems import TextSystems

GENERATE, SERVED = "transformers generate", "served over gRPC"


async def measure_text(report: Report, case: TextCase, systems: TextSystems) -> None:
    await _check_equal(case, systems)
    for batch in case.batches:
        await _time(report, case, systems, batch)


async def _check_equal(case: TextCase, systems: TextSystems) -> None:
    """Every id of every answer; it warms up, too."""
    for batch in case.batches:
        expected = systems.native(batch, case.num_tokens).tolist()
        got = await systems.served_ids(batch, case.num_tokens)
        assert got == expected, f"{case.name(batch)}: the server wrote {got}, {GENERATE} {expected}"


async def _time(report: Report, case: TextCase, systems: TextSystems, batch: int) -> None:
    seconds: dict[str, list[float]] = {GENERATE: [], SERVED: []}
    for _ in range(case.num_rounds):
        start_s = time.perf_counter()
        systems.native(batch, case.num_tokens)
        between_s = time.perf_counter()
        await systems.served(batch, case.num_tokens)
        seconds[GENERATE].append(between_s - start_s)
        seconds[SERVED].append(time.perf_counter() - between_s)
    name, rates = case.name(batch), {}
    for system, took_s in seconds.items():
        rates[system] = batch * case.num_tokens / float(np.median(took_s))
        report.rows += percentile_rows(name, system, took_s)
        report.rows.append(Row(name, system, "tokens", rates[system], "1/s"))
    ratio = rates[SERVED] / rates[GENERATE]
    report.checks.append(Check.at_least(f"served over {GENERATE}, tokens/s, {name}", ratio, MIN_OF_GENERATE))
