"""Rollouts: the published loop, the best hand-written cached loop, and served over gRPC with every latent streamed."""

from __future__ import annotations

import argparse

from benchmarks.served.deployment import deployed
from benchmarks.served.worker_process import run_like_a_worker


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    sizes = ("small", "middle") if args.quick else ("small", "middle", "wide")
    with deployed(sizes, ("float32", "bfloat16")) as server:
        return run_like_a_worker("benchmarks.rollout.measure", server, args)
