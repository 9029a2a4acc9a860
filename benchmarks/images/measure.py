"""Measures one case after the other and writes the report; runs in a process with a worker's settings."""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

from benchmarks.images import beside
from benchmarks.images.cases import MIDDLE_APART, MIDDLE_THREADS, MIN_SPEED, ROUNDS_OF_PLACINGS, Case, cases
from benchmarks.images.checkpoints import MIDDLE
from benchmarks.images.deployment import checkpoint_of
from benchmarks.images.plot import plot
from benchmarks.images.systems import ALL_BRANCHES, SERVED, SKIPPING, ImageSystems, Wave
from benchmarks.report import Check, Report, Row, finish, percentile_rows
from benchmarks.served.worker_process import THREADS, arguments
from mstar_rt.client import AsyncClient, connect_async
from mstar_rt.config import DeploymentConfig, load_deployment

MAX_ERROR = 2
"""Of any pixel, of 255: float32 in another order of sums, rounded."""
APART, TWO_THREADS = "branches on two workers", "one worker, two threads"


def main() -> int:
    server, args = arguments()
    settings = {
        "dtype": "float32", "quick": args.quick,
        "threads": f"{THREADS} for the loops, {THREADS} for each worker where not said otherwise",
    }  # fmt: skip
    report = Report("images", settings)
    try:
        asyncio.run(_measure(report, load_deployment(server.file), server.address, args))
    except Exception:
        if report.rows:  # what was measured before stays
            finish(report, argparse.Namespace(**{**vars(args), "png": None}), plot)
        raise
    return finish(report, args, plot)


async def _measure(report: Report, config: DeploymentConfig, address: str, args: argparse.Namespace) -> None:
    async with connect_async(address) as client:
        for case in cases(args.quick):
            systems = ImageSystems(checkpoint_of(config, case.model), client, {SERVED: case.model})
            for batch in case.batches:
                await _time(report, case, systems, batch)
        if not args.quick:
            await _compare_placings(report, config, client)
            await beside.measure(report)


async def _time(report: Report, case: Case, systems: ImageSystems, batch: int) -> None:
    found = await _rounds(systems, (ALL_BRANCHES, SKIPPING, SERVED), case, batch)
    name = case.name(batch)
    for system, waves in found.items():
        report.rows += [
            *percentile_rows(name, system, [each.took_s for each in waves]),
            _images_per_s(name, system, waves),
        ]
    for system in (ALL_BRANCHES, SKIPPING):
        faster = _median_s(found[system]) / _median_s(found[SERVED])
        report.rows.append(Row(f"{name}: served over {system}", SERVED, "images per second", faster, "x"))
        if system == ALL_BRANCHES and batch in MIN_SPEED:
            report.checks.append(Check.at_least(f"served over {system}, {name}", faster, MIN_SPEED[batch]))


async def _compare_placings(report: Report, config: DeploymentConfig, client: AsyncClient) -> None:
    """The branches of one image on two cores: by two workers, and by two threads of one."""
    names = {SERVED: MIDDLE.name, TWO_THREADS: MIDDLE_THREADS, APART: MIDDLE_APART}
    systems = ImageSystems(checkpoint_of(config, MIDDLE.name), client, names)
    case = Case(MIDDLE.name, (1,), ROUNDS_OF_PLACINGS)
    found = await _rounds(systems, tuple(names), case, 1)
    name = f"{case.name(1)}: placings"
    for system, waves in found.items():
        report.rows += percentile_rows(name, system, [each.took_s for each in waves])
    faster = _median_s(found[TWO_THREADS]) / _median_s(found[APART])
    report.rows.append(Row(f"{name}: {APART} over {TWO_THREADS}", APART, "images per second", faster, "x"))


async def _rounds(systems: ImageSystems, compared: tuple[str, ...], case: Case, batch: int) -> dict[str, list[Wave]]:
    """In turns, after a first one in which the images are compared."""
    first = [await systems.run(system, batch, case.num_steps) for system in compared]
    for system, wave in zip(compared, first, strict=True):
        for image, other in zip(wave.images, first[0].images, strict=True):
            error = int(np.abs(image.astype(int) - other.astype(int)).max())
            assert error <= MAX_ERROR, f"{case.name(batch)}: {system} is off by {error} of 255"
    found: dict[str, list[Wave]] = {system: [] for system in compared}
    for _ in range(case.num_rounds):
        for system in compared:
            found[system].append(await systems.run(system, batch, case.num_steps))
    return found


def _images_per_s(name: str, system: str, waves: list[Wave]) -> Row:
    return Row(name, system, "images", len(waves[0].images) / _median_s(waves), "1/s")


def _median_s(waves: list[Wave]) -> float:
    return float(np.median([wave.took_s for wave in waves]))


if __name__ == "__main__":
    raise SystemExit(main())
