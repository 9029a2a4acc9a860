"""`mstar-rt bench mixed` for as long as one likes: `python -m benchmarks.mixed --seconds 10 --png timeline.png`."""

from __future__ import annotations

import argparse

from benchmarks.mixed import run, shortened

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each case")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], choices=(1, 2), help="on how many, in turn")
    parser.add_argument("--no-capacity", action="store_true", help="without the sweep over robots")
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--png", help="write the timeline to this file")
    arguments = parser.parse_args()
    if not 1 <= arguments.seconds <= 3600:
        parser.error(f"--seconds is {arguments.seconds:g}, expected 1 to 3600: a case has no tick or no end otherwise")
    effort = shortened(arguments.seconds, arguments.workers, not arguments.no_capacity)
    raise SystemExit(run(effort, arguments))
