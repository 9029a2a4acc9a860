"""What a context window buys: how well long rollouts end, what a step costs, how well plans with a history do."""

from __future__ import annotations

import argparse

from benchmarks.served.deployment import deployed
from benchmarks.served.worker_process import run_like_a_worker


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    with deployed(("small", "middle")) as server:
        return run_like_a_worker("benchmarks.window.measure", server, args)
