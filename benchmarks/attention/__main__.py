"""Prints milliseconds per layer for every case, dtype and option; all options' outputs are compared first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.attention.cases import CASES, Case, Memory
from benchmarks.attention.options import Option, flex, options
from mstar_rt.cache.pool import KVPool
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind, select_backend

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.15}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent on each figure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flex", action="store_true", help="also FlexAttention: minutes of compilation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), milliseconds per layer: fastest / median")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for case in CASES:
                report(case, dtype, arguments.seconds, arguments.flex)
        report_planning()


def report(case: Case, dtype: torch.dtype, seconds: float, with_flex: bool) -> None:
    memory = Memory(case, dtype)
    print(f"\n{case.name}, {case.num_new} new, {case.num_heads} x {case.head_dim}, {str(dtype)[6:]}")
    ways: dict[str, Option] = dict(options(memory))
    if with_flex:
        add_flex(ways, memory)
    for name, (fastest, median) in interleaved_timings(checked(ways, dtype), seconds).items():
        print(f"  {name:36} {fastest:8.3f} /{median:8.3f}")


def add_flex(ways: dict[str, Option], memory: Memory) -> None:
    """Add FlexAttention if it compiles for this case; torch 2.13 has no CPU code for one sequence of these shapes."""
    way = flex(memory)
    try:
        way()
    except RuntimeError as error:
        print(f"  flex does not compile: {type(error).__name__}")
    else:
        ways["flex, pages as masked blocks"] = way


def checked(ways: Mapping[str, Option], dtype: torch.dtype) -> Mapping[str, Option]:
    """The same options, once all were found to compute the same."""
    expected: torch.Tensor | None = None
    for name, way in ways.items():
        got = way()
        expected = got if expected is None else expected
        error = (got - expected).abs().max().item()
        assert error <= TOLERANCE[dtype], f"{name} differs by {error}"
    return ways


def interleaved_timings(ways: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, tuple[float, float]]:
    """(fastest, median) in milliseconds.

    The options take turns, so that other load hits all alike and none finds its memory in the cache. With one thread
    the clock is that thread's processor time, which does not count waiting for other processes.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end or len(next(iter(taken.values()))) < 3:
        for name, way in ways.items():
            start = clock()
            way()
            taken[name].append(1e3 * (clock() - start))
    return {name: (min(times), sorted(times)[len(times) // 2]) for name, times in taken.items()}


def report_planning() -> None:
    """What plan() and rollback() of the 96-candidate batch cost, once per step for all layers."""
    print("\nplan + rollback, 96 sequences x 18 new tokens, 8 stored pages")
    ways: dict[str, Callable[[], object]] = {}
    for name, extent in (("even pages", 9), ("scattered pages", 1)):
        pool = KVPool(KVSpec(1, 4, 32, 18, 9 * 18), 96 * 9, extent_pages=extent)
        backend = select_backend("cpu", pool)
        tables = [pool.new_table() for _ in range(96)]
        steps = [AttentionStep(table, 18, StepKind.BLOCK_APPEND) for table in tables]
        for _ in range(8):
            backend.plan(steps)
        ways[name] = lambda backend=backend, steps=steps: backend.plan(steps).rollback()  # type: ignore[misc]
    for name, (fastest, median) in interleaved_timings(ways, 0.5).items():
        print(f"  {name:36} {fastest:8.3f} /{median:8.3f}")


if __name__ == "__main__":
    main()
