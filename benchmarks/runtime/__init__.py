"""What the runtime costs: hops, loop steps and round trips of a model that does nothing, and rollouts of a real one."""

from __future__ import annotations

import argparse
import asyncio

import torch

from benchmarks.report import Report, finish
from benchmarks.runtime import hops, rollouts


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    torch.set_num_threads(1)
    report = Report("runtime", {"dtype": "float32", "threads": 1, "quick": args.quick})
    asyncio.run(hops.measure(report, hops.QUICK if args.quick else hops.FULL))
    rollouts.measure(report, budget_s=0.5 if args.quick else 15.0)
    return finish(report, args)
