"""Measures one case after the other and writes the report; runs in a process with a worker's settings."""

from __future__ import annotations

from benchmarks.plan import options, search
from benchmarks.plan.plot import plot
from benchmarks.report import Report, finish
from benchmarks.served.deployment import target
from benchmarks.served.worker_process import THREADS, arguments

QUICK = (search.Case("small", 3), search.Case("small", 3, "bfloat16"), search.Case("middle", 1))
FULL = (
    *(search.Case("small", horizon, dtype) for dtype in search.DTYPES for horizon in (1, 2, 3, 4)),
    *(search.Case("middle", horizon, dtype) for dtype in search.DTYPES for horizon in (1, 2, 4)),
)


def main() -> int:
    server, args = arguments()
    settings = {"threads": THREADS, "quick": args.quick, "samples": search.SAMPLES, "iterations": search.ITERATIONS}
    report = Report("plan", settings)
    with target(server) as reached:
        for case in QUICK if args.quick else FULL:
            search.measure(report, case, reached, budget_s=1.0 if args.quick else 15.0)
        size, budget_s = ("small", 3.0) if args.quick else ("middle", 90.0)
        options.measure(report, size, reached, budget_s)
    return finish(report, args, plot)


if __name__ == "__main__":
    raise SystemExit(main())
