"""Plans: the published loop, a hand-written cached loop, and served over gRPC; and what each planner option saves."""

from __future__ import annotations

import argparse

from benchmarks.served.deployment import deployed
from benchmarks.served.worker_process import run_like_a_worker


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    with deployed(("small", "middle"), ("float32", "bfloat16")) as server:
        return run_like_a_worker("benchmarks.plan.measure", server, args)
