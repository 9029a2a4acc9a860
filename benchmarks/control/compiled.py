"""The flow of the shipped policy in process: eager, with a compiled velocity, and with the whole loop compiled.

A process of its own, which is given up after a while: what compiling costs, and whether it works here, is a result too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.report import Report, Row

EAGER, STEP, LOOP = "eager", "velocity compiled", "whole loop compiled"
CASE = "the flow alone, in process, one robot"
MAX_ERROR = 1e-4
CALLS, NUM_WARMUPS = 150, 5
TIMEOUT_S = 120.0
NO_CACHE = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
"""So that `preparation` is what a first start takes."""


def measure(report: Report) -> None:
    """What fails is told among the settings of the report."""
    for variant in (EAGER, STEP, LOOP):
        command = [sys.executable, "-m", "benchmarks.control.compiled", variant]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=os.environ | NO_CACHE
            )
        except subprocess.TimeoutExpired:
            report.settings[variant] = f"not compiled within {TIMEOUT_S:.0f} s"
            continue
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            report.settings[variant] = f"does not work here: {lines[-1][:200]}"
            continue
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        units = {"error": "1e-6", "preparation": "s"}
        report.rows += [Row(CASE, variant, name, value, units.get(name, "ms")) for name, value in found.items()]


def _flow(variant: str) -> tuple[Callable[[], Any], Any]:
    """The flow from fixed noise, and what it gives without anything compiled."""
    import torch

    from benchmarks.control import WEIGHTS
    from benchmarks.control.scene import tabletop_scenes
    from mstar_rt.nn.flow import euler_times
    from policies.pi05.train.in_process import InProcessPolicy

    plain = InProcessPolicy.load(WEIGHTS.parent)
    network, num_steps, scene = plain.network, plain.settings.num_denoise_steps, tabletop_scenes()[0]
    observation = {"images": scene.images, "state": scene.state}
    given = plain.context([observation], [scene.instruction or ""], [torch.from_numpy(scene.state)])
    context = network.dense_context(given.images, given.image_mask, given.ids, given.id_mask)
    modulation = network.modulation(euler_times(num_steps))
    noise = torch.randn(1, network.config.action_horizon, network.config.action_dim)
    velocity = torch.compile(network.dense_velocity) if variant == STEP else network.dense_velocity

    def loop(velocity_of: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        for step in range(num_steps):
            x = x - velocity_of(x, modulation.rows(torch.tensor(step)), context) / num_steps
        return x

    expected = loop(network.dense_velocity, noise)
    run = torch.compile(loop) if variant == LOOP else loop
    return (lambda: run(velocity, noise)), expected


def main(variant: str) -> None:
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        run, expected = _flow(variant)
        start_s = time.perf_counter()
        error = float((run() - expected).abs().max())
        preparation_s = time.perf_counter() - start_s
        assert error <= MAX_ERROR, f"{variant} differs from eager by {error}"
        seconds = []
        for call in range(NUM_WARMUPS + CALLS):
            start_s = time.perf_counter()
            run()
            if call >= NUM_WARMUPS:
                seconds.append(time.perf_counter() - start_s)
    percents = statistics.quantiles(seconds, n=100)
    found = {"p50": percents[49] * 1e3, "p95": percents[94] * 1e3, "p99": percents[98] * 1e3}
    print(json.dumps(found | {"error": error * 1e6, "preparation": preparation_s}))


if __name__ == "__main__":
    main(sys.argv[1])
