"""Plans and generations that have no answer yet: how many there are, and when one more would begin. A pure object.

Workers begin everything at once and share the rank's time out, so what "begins" when is a reckoning: the work before a
request, over what control sessions leave of the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mstar_rt.errors import DeadlineExceeded, ResourceExhausted

CLASSES = ("planning", "generation")
"""The more critical one first, whose work goes before the other's."""
LEAST_LEFT = 0.05
"""Of a rank, for everything but control, however many sessions were admitted."""
NEVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """An unanswered request: the nanoseconds that it costs each rank, all in all."""

    level: int
    deadline_ns: int
    cost_ns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Call:
    """So many requests that came together and do the same; on one of its replicas at least so many."""

    num_together: int
    num_on_rank: int


ALONE = Call(1, 1)


@dataclass(slots=True)
class _Level:
    """One rank, up to some class. `work_ns` was left at `at_ns`; `cost_ns` is what all its unanswered requests cost."""

    cost_ns: int = 0
    work_ns: float = 0.0
    at_ns: int = 0

    def drain(self, now_ns: int, left: float) -> None:
        done_ns = (now_ns - self.at_ns) * left
        self.work_ns = max(0.0, min(self.work_ns - done_ns, self.cost_ns))
        self.at_ns = now_ns


@dataclass(slots=True)
class RequestQueues:
    """`limits` by class; `left(rank)` is the part of its time that control sessions leave."""

    limits: Mapping[str, int]
    left: Callable[[int], float]
    waiting: dict[str, Waiting] = field(default_factory=dict)
    num: Counter[int] = field(default_factory=Counter)
    levels: dict[tuple[int, int], _Level] = field(default_factory=dict)

    def check_room(self, criticality: str, now_ns: int) -> None:
        """Raises:  ResourceExhausted: the queue of that class is full."""
        level, most = CLASSES.index(criticality), self.limits[criticality]
        if self.num[level] < most:
            return
        error = ResourceExhausted(
            f"{self.num[level]} {criticality} requests have no answer yet, at most {most} may wait: try again later"
        )
        busiest_s = max((self._left_to_do_s(key[0], level, now_ns) for key in list(self.levels)), default=0.0)
        error.retry_after_s = max(0.01, busiest_s / most)
        raise error

    def check_start(
        self,
        criticality: str,
        deadline_ns: int | None,
        cost_ns: Mapping[int, int],
        now_ns: int,
        call: Call = ALONE,
    ) -> None:
        """`call` is what it came with.

        Raises:  ResourceExhausted: it would not begin before its deadline on some rank.  DeadlineExceeded: nor would
                 all of its call, with nothing else before them.
        """
        if deadline_ns is None:
            return
        level = CLASSES.index(criticality)
        waits_s = {rank: self._before_s(rank, level, deadline_ns, now_ns) for rank in cost_ns}
        rank = max(waits_s, key=lambda rank: waits_s[rank], default=0)
        wait_s, given_s = waits_s.get(rank, 0.0), (deadline_ns - now_ns) / 1e9
        if wait_s <= max(given_s, 0.0):
            return
        self._check_alone(call, cost_ns, max(given_s, 0.0))
        error = ResourceExhausted(
            f"this {criticality} request would begin in {wait_s:.3g} s, after its deadline in {given_s:.3g} s: rank "
            f"{rank} has {wait_s * self._left(rank):.3g} s of work before it, and control sessions leave "
            f"{self._left(rank):.0%} of the rank; give it more time, or try again later"
        )
        error.retry_after_s = wait_s - given_s
        raise error

    def _check_alone(self, call: Call, cost_ns: Mapping[int, int], given_s: float) -> None:
        """Another try would not help where what the last of the call waits for is the call itself."""
        costs_s = {rank: each_ns / self._left(rank) / 1e9 for rank, each_ns in cost_ns.items()}
        rank = max(costs_s, key=lambda rank: costs_s[rank])
        if (call.num_on_rank - 1) * costs_s[rank] <= given_s:
            return
        raise DeadlineExceeded(
            f"{call.num_together} requests of one call take about {call.num_on_rank * costs_s[rank]:.3g} s with the "
            f"{self._left(rank):.0%} of rank {rank} that control sessions leave, and {given_s:.3g} s are left until "
            "their deadline: ask for fewer at once, or give them more time"
        )

    def add(
        self, request_id: str, criticality: str, deadline_ns: int | None, cost_ns: Mapping[int, int], now_ns: int
    ) -> None:
        level = CLASSES.index(criticality)
        self.waiting[request_id] = Waiting(level, NEVER_NS if deadline_ns is None else deadline_ns, cost_ns)
        self.num[level] += 1
        for rank, each_ns in cost_ns.items():
            for upto in range(level, len(CLASSES)):
                at = self._drained(rank, upto, now_ns)
                at.cost_ns += each_ns
                at.work_ns += each_ns

    def remove(self, request_id: str, now_ns: int) -> None:
        """It has its answer. Without effect on others than those that were added."""
        gone = self.waiting.pop(request_id, None)
        if gone is None:
            return
        self.num[gone.level] -= 1
        for rank, each_ns in gone.cost_ns.items():
            for upto in range(gone.level, len(CLASSES)):
                at = self.levels[rank, upto]
                at.cost_ns -= each_ns
                at.drain(now_ns, self._left(rank))

    def _before_s(self, rank: int, level: int, deadline_ns: int, now_ns: int) -> float:
        """Seconds until the rank has done what goes before: more critical work, and of the same class what is due no
        later. Of everything that is unanswered the same part is taken to be done already, and nothing runs beyond its
        own deadline."""
        at = self._drained(rank, level, now_ns)
        if not at.cost_ns:
            return 0.0
        left = self._left(rank)
        before_ns = sum(
            min(other.cost_ns.get(rank, 0), max(0, other.deadline_ns - now_ns) * left)
            for other in self.waiting.values()
            if other.level < level or (other.level == level and other.deadline_ns <= deadline_ns)
        )
        return before_ns * (at.work_ns / at.cost_ns) / left / 1e9

    def _left_to_do_s(self, rank: int, level: int, now_ns: int) -> float:
        return self._drained(rank, level, now_ns).work_ns / self._left(rank) / 1e9

    def _drained(self, rank: int, level: int, now_ns: int) -> _Level:
        at = self.levels.get((rank, level))
        if at is None:
            at = self.levels[rank, level] = _Level(at_ns=now_ns)
        at.drain(now_ns, self._left(rank))
        return at

    def _left(self, rank: int) -> float:
        return max(LEAST_LEFT, self.left(rank))
