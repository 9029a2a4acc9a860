"""Several systems doing the same work, alternating, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def alternate(
    systems: Mapping[str, Callable[[], object]], budget_s: float, num_warmups: int = 1, max_rounds: int = 200
) -> dict[str, list[float]]:
    """Seconds per call of each system over as many rounds as fit into `budget_s`, at least 3; warm-ups excluded."""
    for _ in range(num_warmups):
        for run in systems.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    end_s = time.monotonic() + budget_s
    while len(next(iter(seconds.values()))) < max_rounds:
        for name, run in systems.items():
            start_s = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start_s)
        if time.monotonic() > end_s and len(next(iter(seconds.values()))) >= 3:
            break
    return seconds
