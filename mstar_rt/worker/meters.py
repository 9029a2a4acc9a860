"""What a worker counts about time: steps, how busy each class keeps it, what missed its deadline, what was dropped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from mstar_rt.histogram import COUNT_BOUNDS, Histogram
from mstar_rt.message import Distribution
from mstar_rt.worker.unit import CRITICALITIES, Unit

LATE = "late"
"""The deadline had passed before a node of the request could run."""

HOPELESS = "hopeless"
"""What was left of the time is less than what the request still needs at the least."""

STALLED = "stalled"
"""The deadline passed while the request waited for pages, its turn, or what other ranks keep."""


NUM_SLOTS, SLOT_NS = 10, 1_000_000_000
MAX_UNCOUNTED = 64
"""Steps that are noted before they are counted. One at a time that takes three times as long: its code and data have
left the processor's caches in between."""


class BusyShare:
    """The share of the last NUM_SLOTS seconds that was spent in steps. A step counts where it ended."""

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque(maxlen=NUM_SLOTS)

    def add(self, end_ns: int, duration_ns: int) -> None:
        slot = end_ns // SLOT_NS
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += duration_ns
        else:
            self._slots.append([slot, duration_ns])

    def share(self, now_ns: int) -> float:
        oldest = now_ns // SLOT_NS - NUM_SLOTS + 1
        busy_ns = sum(slot_ns for slot, slot_ns in self._slots if slot >= oldest)
        return min(1.0, busy_ns / (now_ns - oldest * SLOT_NS)) if busy_ns else 0.0


Noted = tuple[tuple[str, str], int, int, list[tuple[str, int]]]
"""The node of a step, when it began and ended, and for each unit its class and since when it could run."""


class Meters:
    """Totals and distributions since the worker started, and gauges of what is ready now."""

    def __init__(self) -> None:
        self.misses = dict.fromkeys(CRITICALITIES, 0)
        self._uncounted: list[Noted] = []
        self._num_steps = 0
        self._num_units = 0
        self._busy_ns = dict.fromkeys(CRITICALITIES, 0)
        self.drops: Counter[str] = Counter({LATE: 0, HOPELESS: 0, STALLED: 0})
        self._busy = BusyShare()
        self._queue_us = {kind: Histogram() for kind in CRITICALITIES}
        self._run_us: dict[tuple[str, str], Histogram] = {}
        self._batch_size: dict[tuple[str, str], Histogram] = {}

    def step(self, units: Sequence[Unit[Any]], start_ns: int, end_ns: int) -> None:
        """One step; it counts as of its first unit's class."""
        uncounted = self._uncounted
        waits = [(unit.criticality, unit.ready_ns) for unit in units]
        uncounted.append((units[0].engine_id, start_ns, end_ns, waits))
        if len(uncounted) >= MAX_UNCOUNTED:
            self.count()

    def count(self) -> None:
        """What `step` noted; for moments in which nobody waits."""
        for engine_id, start_ns, end_ns, waits in self._uncounted:
            duration_ns = end_ns - start_ns
            self._num_steps += 1
            self._num_units += len(waits)
            self._busy_ns[waits[0][0]] += duration_ns
            self._busy.add(end_ns, duration_ns)
            run_us = self._run_us.get(engine_id)
            if run_us is None:
                run_us = self._run_us[engine_id] = Histogram()
                self._batch_size[engine_id] = Histogram(COUNT_BOUNDS)
            run_us.observe(duration_ns / 1e3)
            self._batch_size[engine_id].observe(len(waits))
            for criticality, ready_ns in waits:
                self._queue_us[criticality].observe((start_ns - ready_ns) / 1e3)
        self._uncounted.clear()

    def dropped(self, criticality: str, reason: str) -> None:
        """A request ends unanswered over its deadline, which is a miss as well."""
        self.drops[reason] += 1
        self.misses[criticality] += 1

    def missed(self, criticality: str) -> None:
        """A walk ended after its deadline."""
        self.misses[criticality] += 1

    def stats(self, ready: Iterable[Unit[Any]], now_ns: int) -> dict[str, float]:
        """By name, with the label behind a slash."""
        self.count()
        values = {"steps_total": float(self._num_steps), "units_total": float(self._num_units)}
        num_ready = dict.fromkeys(CRITICALITIES, 0)
        oldest_ns = dict.fromkeys(CRITICALITIES, now_ns)
        for unit in ready:
            num_ready[unit.criticality] += 1
            oldest_ns[unit.criticality] = min(oldest_ns[unit.criticality], unit.ready_ns)
        for kind in CRITICALITIES:
            values[f"ready_units/{kind}"] = float(num_ready[kind])
            values[f"oldest_ready_us/{kind}"] = (now_ns - oldest_ns[kind]) / 1e3
            values[f"busy_us/{kind}"] = self._busy_ns[kind] / 1e3
            values[f"misses/{kind}"] = float(self.misses[kind])
        values["utilisation"] = self._busy.share(now_ns)
        for reason, count in self.drops.items():
            values[f"drops/{reason}"] = float(count)
        return values

    def histograms(self) -> dict[str, Distribution]:
        """Microseconds that units waited, by class; microseconds and units of steps, by model and node."""
        self.count()
        named = {f"queue_us/{kind}": histogram for kind, histogram in self._queue_us.items()}
        for (model, node), histogram in self._run_us.items():
            named[f"run_us/{model}/{node}"] = histogram
            named[f"batch_size/{model}/{node}"] = self._batch_size[model, node]
        return {name: Distribution(list(h.bounds), list(h.counts), h.total) for name, h in named.items()}
