"""How late a control tick can be, and what settings of the processes do about it: each beside a runtime without it."""

from __future__ import annotations

import argparse
import functools

from benchmarks.jitter.cases import CASES, QUICK_CASES
from benchmarks.jitter.compare import FULL, QUICK, measure
from benchmarks.report import Report, bars, finish


def main(args: argparse.Namespace) -> int:
    """`args` has quick, json and png."""
    report = Report("jitter", {"threads": 1, "dtype": "float32", "quick": args.quick})
    measure(report, QUICK_CASES if args.quick else CASES, QUICK if args.quick else FULL)
    return finish(report, args, functools.partial(bars, metric="p99"))
