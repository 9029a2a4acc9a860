"""Runs the parts one after the other and writes the report; in a process with a worker's settings."""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.control import compiled, overhead, shipped, smoothness
from benchmarks.control.plot import plot
from benchmarks.report import Report, finish
from benchmarks.served.worker_process import THREADS, arguments
from mstar_rt.client import connect_async


def main() -> int:
    server, args = arguments()
    settings = {"threads": THREADS, "dtype": "float32", "quick": args.quick}
    report = Report("control", settings)
    asyncio.run(_measure(report, server.address, args))
    if args.quick:
        report.settings["compiled"] = "left out with --quick"
    else:
        compiled.measure(report)
    return finish(report, args, plot)


async def _measure(report: Report, address: str, args: argparse.Namespace) -> None:
    async with connect_async(address) as client:
        await overhead.measure(report, client, args.quick)
        await shipped.measure(report, client, args.quick)
    await smoothness.measure(report, address, args.quick)


if __name__ == "__main__":
    raise SystemExit(main())
