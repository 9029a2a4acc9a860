"""Measures rollouts, then plans, and writes the report."""

from __future__ import annotations

from benchmarks.report import Report, finish
from benchmarks.served.deployment import target
from benchmarks.served.worker_process import THREADS, arguments
from benchmarks.window import planning, rollouts


def main() -> int:
    server, args = arguments()
    num_episodes, num_rounds, num_tasks = (5, 1, 0) if args.quick else (100, 7, 50)
    settings = {"threads": THREADS, "quick": args.quick, "episodes": num_episodes, "tasks": num_tasks}
    report = Report("window", settings)
    with target(server) as reached:
        rollouts.measure_errors(report, reached.client, num_episodes)
        rollouts.measure_steps(report, reached, num_rounds)
        if num_tasks:
            planning.measure(report, reached.client, num_tasks)
    return finish(report, args, rollouts.plot)


if __name__ == "__main__":
    raise SystemExit(main())
