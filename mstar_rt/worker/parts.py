"""How much of its units a step takes, so that it ends within `max_step_ms`. Pure: no clock.

Where a node's code says how many items a call has, a unit that would take too long runs in parts: consecutive ranges of
its items, one a step. Between two of them the unit is ready like any other. In the worker's step of such a node:

    later = parts.cut(units)                   # taken out of `units`: ready again at once
    ...                                        # run the calls
    parts.observe(..., items_of(units), duration_ns)
    if has_more(unit, result): ...             # ready again, else the result has the outputs
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mstar_rt.model import NodeResult
from mstar_rt.worker.active import Work
from mstar_rt.worker.step_sizes import StepSizes
from mstar_rt.worker.unit import Unit

PLANNED_TENTHS = 9
"""A step is cut to this much of the bound, so that one which is a little slower than expected still keeps it."""
MAX_KINDS = 1024


class Parts:
    """Cuts batches to `max_step_ns`; with None every unit runs as a whole."""

    def __init__(self, max_step_ns: int | None) -> None:
        self._limit_ns = None if max_step_ns is None else max_step_ns * PLANNED_TENTHS // 10
        self._sizes: dict[tuple[tuple[str, str], Hashable], StepSizes] = {}

    def cut(self, units: list[Unit[Work]]) -> list[Unit[Work]]:
        """Say in each call which part this step takes of it: all of the first units, and of the next one what there is
        time for. One alone is cut into parts of about the same size. Where nothing was measured one item runs.

        Returns: units for which there is no time in this step, taken out of `units`.
        """
        if self._limit_ns is None:
            return []
        first = units[0]
        sizes = self._sizes.get((first.engine_id, first.batch_key))
        num_left = 1 if sizes is None else sizes.most
        if num_left < first.num_items:
            num_left = _equal_share(first.num_items, num_left)
        for index, unit in enumerate(units):
            if not num_left:
                later = units[index:]
                del units[index:]
                return later
            num_taken = min(unit.num_items, num_left)
            num_left -= num_taken
            _take(unit, num_taken)
        return []

    def observe(self, engine_id: tuple[str, str], batch_key: Hashable, num_items: int, duration_ns: int) -> None:
        """A step took so long, in which nothing failed."""
        if self._limit_ns is None:
            return
        sizes = self._sizes.get((engine_id, batch_key))
        if sizes is None:
            if len(self._sizes) >= MAX_KINDS:
                self._sizes.pop(next(iter(self._sizes)))
            sizes = self._sizes[engine_id, batch_key] = StepSizes(self._limit_ns)
        sizes.observe(num_items, duration_ns)


def items_of(units: Sequence[Unit[Work]]) -> int:
    """How many items the step has, as `cut` left it."""
    calls = [unit.work.call for unit in units]
    return sum([call.num_items if call.part is None else len(call.part) for call in calls])


def has_more(unit: Unit[Work], result: NodeResult) -> bool:
    """Whether what ran was a part that others follow; the unit stands at the next one then."""
    call = unit.work.call
    part = call.part
    if part is None or part.stop == call.num_items:
        return False
    call.progress = result.progress
    unit.num_items = call.num_items - part.stop
    return True


def _take(unit: Unit[Work], num_items: int) -> None:
    """The next items of a unit."""
    call = unit.work.call
    start = call.num_items - unit.num_items
    call.part = None if num_items == call.num_items else range(start, start + num_items)


def _equal_share(num_items: int, most: int) -> int:
    """The size of parts of at most `most` items, as few as that allows and as equal."""
    num_parts = -(-num_items // most)
    return -(-num_items // num_parts)
