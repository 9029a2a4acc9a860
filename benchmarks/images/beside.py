"""A robot at 20 Hz on the worker that draws: the mixed benchmark, with images in the place of its painter."""

from __future__ import annotations

import gc

from benchmarks.control import scene as control
from benchmarks.images.checkpoints import SHIPPED_MODEL
from benchmarks.mixed import contention
from benchmarks.mixed.cases import ALONE, MIXED, PAINTERS
from benchmarks.mixed.deployments import DEADLINE, serving
from benchmarks.report import Report
from mstar_rt.client import connect_async

CASES = (ALONE, MIXED[DEADLINE], PAINTERS)
SECONDS, NUM_ROUNDS = 60.0, 2
"""For each case, in all."""


async def measure(report: Report) -> None:
    scenes = control.tabletop_scenes()
    gc.collect()
    gc.freeze()  # see benchmarks.mixed
    with serving(1, (DEADLINE,), admission=False, painter=SHIPPED_MODEL) as reached:
        async with connect_async(reached.address) as client:
            await contention.measure(report, client, reached, scenes, SECONDS, NUM_ROUNDS, CASES)
