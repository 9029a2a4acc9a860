"""Which ready nodes run next, as one batch: a pure object, no clock, no torch.

The most critical class runs first. Inside a class the request that is *least advanced* in its walk runs first, so that
requests which started apart meet at the same node and share its step from there on; but a unit that `patience` batches
were preferred to is *overdue* and goes before those that are not, and where no deadline binds, a client that is far
behind others in step time goes before them. All this holds only while it makes nobody late: else, and between requests
with close deadlines that cannot meet, the earliest deadline runs. What cannot make its deadline any more is dropped
before it is computed.

A *soft* deadline (see playback.Player) makes nobody fail. Whoever would be late for one goes next unless that breaks a
real deadline, or something without any deadline is overdue; batches of other nodes are cut for it, those of its own are
not.

The batch is filled with units of the same node and the same batch key while the predicted step still lets everybody
finish in time whom it delays. Classes below one that takes all the time keep a share of it (LowerShare).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Generic

from mstar_rt.worker.cost_model import UNDIVIDED_TENTHS, CostModel
from mstar_rt.worker.scheduler_ready import NEVER_NS, Deadlines, Group, ReadyClass
from mstar_rt.worker.scheduler_share import LowerShare
from mstar_rt.worker.unit import CLASS_OF, CRITICALITIES, Decision, T, Unit

UNMEASURED_NS = 20_000_000
"""What a step is taken for that nobody has measured."""

CLOSE_NS = 100_000_000
"""How much time to spare makes the order of deadlines indifferent to what may still arrive. Beyond it requests take
turns: a deadline that is far off, such as a timeout, must not hold up others until its request is over."""

MEETING_PARTS = 3
"""Who waits for others to catch up must end with them in one of so many parts of the time he has left: each of those
that come one after another asks him to wait, and what a walk needs grows with those that join it. Where it was enough
to end at the last moment, one tick in 200,000 was late of robots that admission had found to be in time."""

IN_HAND_NS = 100_000_000
"""What has no deadline at all lets those go first who have a soft one and less than this to spare."""

NUM_LOOKED_AT = 8
"""How many of a class, earliest deadlines first, are held against what would delay them: a decision must not cost more
the more is ready, and later deadlines are rarely those that break."""


class Scheduler(Generic[T]):
    """The ready set of one worker. Adding and taking a unit costs the logarithm of how many are ready.

    Args:    lower_share: see config.WorkerConfig.lower_class_share. max_step_ns: what a batch is not filled beyond.
    """

    def __init__(
        self,
        max_batch: int,
        cost: CostModel | None = None,
        lower_share: float = 0.05,
        max_step_ns: int | None = None,
        patience: int = 8,
        unmeasured_ns: int = UNMEASURED_NS,
    ) -> None:
        self._max_batch = max_batch
        self._cost = cost if cost is not None else CostModel()
        self._max_step_ns = max_step_ns
        self._patience = patience
        self._unmeasured_ns = unmeasured_ns
        self._share = LowerShare(lower_share)
        self._classes: tuple[ReadyClass[T], ...] = tuple(ReadyClass() for _ in CRITICALITIES)
        self._groups: dict[object, Group[T]] = {}
        self._by_drop: list[tuple[int, int, Unit[T]]] = []
        self._num_ready = 0
        self._num_added = 0
        self._num_batches = 0
        self._only: Unit[T] | None = None  # a unit that alone is ready needs no order

    def __len__(self) -> int:
        return self._num_ready

    def __iter__(self) -> Iterator[Unit[T]]:
        if self._only is not None:
            yield self._only
        for ready in self._classes:
            yield from ready

    # --- the ready set -----------------------------------------------------------------------------------------------

    def add(self, units: Iterable[Unit[T]]) -> None:
        for unit in units:
            self.add_one(unit)

    def add_one(self, unit: Unit[T]) -> None:
        unit.added_at = self._num_batches
        self._num_ready += 1
        if self._num_ready == 1:
            self._only = unit
            return
        if self._only is not None:
            self._put(self._only)
            self._only = None
        self._put(unit)

    def remove_request(self, request_id: str) -> None:
        if self._only is not None:
            if self._only.request_id == request_id:
                self._only = None
                self._num_ready = 0
            return
        for unit in [unit for unit in self if unit.request_id == request_id]:
            self._take(unit)

    def _put(self, unit: Unit[T]) -> None:
        self._num_added += 1
        unit.number = self._num_added
        deadline_ns = NEVER_NS if unit.deadline_ns is None else unit.deadline_ns
        key = (unit.engine_id, unit.batch_key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key)
        group.add(unit, deadline_ns)
        self._classes[CLASS_OF[unit.criticality]].add(unit, deadline_ns)
        if unit.drop_after_ns is not None:
            heappush(self._by_drop, (unit.drop_after_ns, unit.number, unit))
            if len(self._by_drop) > 2 * self._num_ready + 64:
                self._by_drop = [entry for entry in self._by_drop if entry[1] == entry[2].number]
                heapify(self._by_drop)

    def _take(self, unit: Unit[T]) -> None:
        group = unit.group
        group.num_ready -= 1
        group.num_items -= unit.num_items
        if not group.num_ready:
            del self._groups[group.key]
        self._classes[CLASS_OF[unit.criticality]].remove(unit)
        unit.number = 0
        self._num_ready -= 1

    # --- the decision ------------------------------------------------------------------------------------------------

    def next_batch(self, now_ns: int) -> Decision[T]:
        """Take the next batch out of the ready set, and what is dropped."""
        if self._only is not None:
            unit, self._only = self._only, None
            self._num_batches += 1
            self._num_ready = 0
            if unit.drop_after_ns is not None and now_ns > unit.drop_after_ns:
                return Decision([], [unit])
            return Decision([unit], [])
        dropped = self._drop(now_ns)
        if not self._num_ready:
            return Decision([], dropped)
        self._num_batches += 1
        kind = self._class_to_run(now_ns)
        return Decision(self._filled(self._first(kind, now_ns), kind, now_ns), dropped)

    def ran(self, batch: Sequence[Unit[T]], duration_ns: int) -> None:
        if self._num_ready or not self._share.is_even:
            self._share.ran(CLASS_OF[batch[0].criticality], self._least_critical_ready(), duration_ns)
        per_unit_ns = duration_ns // len(batch)
        for unit in batch:
            self._classes[CLASS_OF[unit.criticality]].shares.charge(unit.client, per_unit_ns)

    def _drop(self, now_ns: int) -> list[Unit[T]]:
        by_drop, dropped = self._by_drop, []
        while by_drop and by_drop[0][0] < now_ns:
            _, number, unit = heappop(by_drop)
            if number == unit.number:
                self._take(unit)
                dropped.append(unit)
        return dropped

    def _class_to_run(self, now_ns: int) -> int:
        """The most critical, unless what is below it is owed time."""
        ready = [kind for kind, of_class in enumerate(self._classes) if of_class.num_ready]
        for kind, lower in pairwise(ready):
            if not self._share.is_owed(kind):
                return kind
            if self._share.is_overdue(kind):
                continue
            if not self._harms_nobody(self._first(lower, now_ns), self._classes[kind].by_deadline, now_ns):
                return kind
        return ready[-1]

    def _least_critical_ready(self) -> int:
        if self._only is not None:
            return CLASS_OF[self._only.criticality]
        for kind in range(len(self._classes) - 1, -1, -1):
            if self._classes[kind].num_ready:
                return kind
        return 0

    def _first(self, kind: int, now_ns: int) -> Unit[T]:
        """Of a class that has some."""
        ready = self._classes[kind]
        overdue_at = self._num_batches - 1 - self._patience
        first = self._first_by_deadline(ready, overdue_at, now_ns)
        if not ready.by_soft_deadline or (first.deadline_ns is None and first.added_at <= overdue_at):
            return first
        soft = ready.by_soft_deadline[0][2]
        then_ns = now_ns if first.deadline_ns is not None else now_ns + IN_HAND_NS
        if first.group is not soft.group and self._harms_nobody(first, ready.by_soft_deadline, then_ns):
            return first
        return soft if self._harms_nobody(soft, ready.by_deadline, now_ns) else first

    def _first_by_deadline(self, ready: ReadyClass[T], overdue_at: int, now_ns: int) -> Unit[T]:
        first = ready.first(overdue_at)
        if first.drop_after_ns is None:
            first = ready.shares.behind(first) or first
        if not ready.by_deadline:
            return first
        earliest = ready.by_deadline[0][2]
        if first is earliest or first.group is earliest.group:
            return earliest
        if first.deadline_ns is not None and not _can_meet(first, earliest) and self._is_close(earliest, now_ns):
            return earliest  # nothing is gained by another order
        return first if self._harms_nobody(first, ready.by_deadline, now_ns) else earliest

    def _is_close(self, unit: Unit[T], now_ns: int) -> bool:
        """Whether what arrives from now on could make the unit late, if others run before it now."""
        if unit.deadline_ns is None or unit.drop_after_ns is None:
            return False
        return unit.deadline_ns - now_ns - self._needed_ns(unit) <= CLOSE_NS

    def _harms_nobody(self, first: Unit[T], by_deadline: Deadlines[T], now_ns: int) -> bool:
        """Whether all those with early deadlines can still make them once `first` has run.

        Those who follow `first` through the same nodes wait until it has caught up and end together with it, and that
        must leave them time for more who come; the others run after this step, one after another.
        """
        busy_ns = now_ns + self._step_ns(first)
        meets_ns = max(busy_ns, now_ns + (first.remaining_ns or 0))
        counted = [first.group]
        for deadline_ns, _, unit in by_deadline[:NUM_LOOKED_AT]:
            if unit.group is first.group:
                continue
            if _can_meet(unit, first):
                if meets_ns > now_ns + (deadline_ns - now_ns) // MEETING_PARTS:
                    return False
                continue
            if unit.group not in counted:
                counted.append(unit.group)
                busy_ns += self._needed_ns(unit)
            if busy_ns > deadline_ns:
                return False
        return True

    # --- the batch ---------------------------------------------------------------------------------------------------

    def _filled(self, first: Unit[T], kind: int, now_ns: int) -> list[Unit[T]]:
        """`first` and others of its group, all out of the ready set."""
        group = first.group
        self._take(first)
        batch = [first]
        if not group.num_ready or self._max_batch == 1:
            return batch
        num_items = first.num_items + group.num_items
        limit_ns = self._must_end_by(first, kind, now_ns)
        if self._max_step_ns is not None:
            if num_items == group.num_ready + 1:
                num_items = self._most_within(self._max_step_ns, first, num_items)
            elif now_ns + self._max_step_ns <= limit_ns:
                limit_ns = NEVER_NS  # the worker runs parts of them, and gives back those for which there is no time
        if limit_ns != NEVER_NS:
            num_items = self._cost.most_items(first.engine_id, first.batch_key, limit_ns - now_ns, num_items)
        room = num_items - first.num_items
        while room > 0 and group.num_ready and len(batch) < self._max_batch:
            unit = group.first()
            room -= unit.num_items
            if room < 0:
                break
            self._take(unit)
            batch.append(unit)
        return batch

    def _most_within(self, max_step_ns: int, first: Unit[T], at_most: int) -> int:
        """How many units a step may have to keep the bound; where one alone is over it, to take little longer than
        that. What more of them take is not known then until they run: twice as many as ever did are tried."""
        cost, engine_id, key = self._cost, first.engine_id, first.batch_key
        alone_ns = cost.predict_ns(engine_id, key, 1) or 0
        if alone_ns <= max_step_ns:
            return cost.most_items(engine_id, key, max_step_ns, at_most)
        most = cost.most_items(engine_id, key, alone_ns * UNDIVIDED_TENTHS // 10, at_most)
        known = cost.largest_size(engine_id, key)
        return min(at_most, 2 * known) if most >= known else most

    def _must_end_by(self, first: Unit[T], kind: int, now_ns: int) -> int:
        """Until when a step that `first` is in must be over, so that everybody in time if `first` runs alone stays so:
        of those in its group what follows this step counts, of the others all that they need, one after another."""
        step_ns = self._step_ns(first)
        alone_ns = now_ns + step_ns
        limit_ns, counted = NEVER_NS, [first.group]
        if first.deadline_ns is not None and not first.is_soft:
            ends_by_ns = first.deadline_ns - max(0, self._needed_ns(first) - step_ns)
            if ends_by_ns >= alone_ns:
                limit_ns = ends_by_ns
        for of_class in self._classes[: kind + 1]:
            busy_ns = 0
            for deadline_ns, _, unit in of_class.by_deadline[:NUM_LOOKED_AT]:
                if unit.group is first.group:
                    ends_by_ns = deadline_ns - max(0, self._needed_ns(unit) - step_ns)
                else:
                    if unit.group not in counted:
                        counted.append(unit.group)
                        busy_ns += self._needed_ns(unit)
                    ends_by_ns = deadline_ns - busy_ns
                if alone_ns <= ends_by_ns < limit_ns:
                    limit_ns = ends_by_ns
            if not of_class.by_soft_deadline:
                continue
            for deadline_ns, _, unit in of_class.by_soft_deadline[:NUM_LOOKED_AT]:
                if unit.group not in counted:
                    counted.append(unit.group)
                    busy_ns += self._needed_ns(unit)
                    if alone_ns <= deadline_ns - busy_ns < limit_ns:
                        limit_ns = deadline_ns - busy_ns
        return limit_ns

    def _needed_ns(self, unit: Unit[T]) -> int:
        return self._unmeasured_ns if unit.remaining_ns is None else unit.remaining_ns

    def _step_ns(self, unit: Unit[T]) -> int:
        """What the unit takes alone."""
        step_ns = self._cost.predict_ns(unit.engine_id, unit.batch_key, unit.num_items)
        if step_ns is None:
            step_ns = self._unmeasured_ns
        if self._max_step_ns is not None and unit.num_items > 1:
            return min(step_ns, self._max_step_ns)
        return step_ns


def _can_meet(unit: Unit[T], other: Unit[T]) -> bool:
    return unit.walk_key is not None and unit.walk_key == other.walk_key
