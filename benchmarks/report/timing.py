"""Several systems doing the same work, alternating, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def alternate(
    systems: Mapping[str, Callable[[], object]],
    budget_s: float,
    num_warmups: int = 1,
    max_rounds: int = 200,
    turns: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Seconds per call of each system over as many rounds as fit into `budget_s`, at least 3; warm-ups excluded.

    `turns` are calls per round, 1 where not named: quick systems may be called more often, in turn with one another,
    beside one that takes a minute.
    """
    for _ in range(num_warmups):
        for run in systems.values():
            run()
    turns = dict.fromkeys(systems, 1) | dict(turns or {})
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    end_s = time.monotonic() + budget_s
    for num_done in range(1, max_rounds + 1):
        for turn in range(max(turns.values())):
            for name, run in systems.items():
                if turn < turns[name]:
                    start_s = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - start_s)
        if time.monotonic() > end_s and num_done >= 3:
            break
    return seconds
