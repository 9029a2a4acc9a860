"""What some requests took, and what one of so many at once typically costs.

Requests that share a step of a node share what it takes, so a share says little without how many there were: samples
are kept apart by that. A step of more requests takes longer, but not in proportion. So from steps that some shared
follows what more of them take at most, by their shares, and what fewer of them do, all that they took.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mstar_rt.message import NodeTime, WalkDone

WINDOW = 64
"""Requests that are remembered."""
FEW = 8
"""Of up to so many that ran alone the middle one counts, as one of three may have been disturbed; of more the 90th
percentile. Of few that shared steps the largest does: their shares let others in."""
ENOUGH = 3
"""From how many on they stand for themselves."""
EVERY_NS = 230_000_000
"""Of more than FEW, one in this time is taken: control ticks wait for it. No multiple of usual periods, or it would be
the same robot's each time."""
OLD_NS = 30_000_000_000
"""What was measured so long before the newest with as many others does not count: the machine may have been busy."""
TOO_OLD_NS = 900_000_000_000
"""Nor what was shared so long before anything else ran: robots seldom meet while there is time."""
MAX_BETWEEN_US = 300.0
"""What passes between two steps, at most: where others use the rank, more is seen than belongs to the step."""

T = TypeVar("T")

Use = tuple[str, str]
"""(walk, use of a node in it)."""
Place = tuple[Use, int]
"""A use on a rank."""


@dataclass(slots=True)
class Share:
    """A request's share of the steps that it was in, for one iteration of each loop that an option turns: the time that
    they ran, and how many they were. `num_together` requests were in a step on average, rounded up; `step_us` is what
    one took."""

    run_us: float
    num_steps: float
    num_together: int = 1
    step_us: float = 0.0

    def add(self, other: Share) -> None:
        """Of another walk of the request."""
        self.run_us += other.run_us
        self.num_steps += other.num_steps
        self.num_together = max(self.num_together, other.num_together)
        self.step_us = max(self.step_us, other.step_us)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. `between_us` is how long each rank let it wait per step, the least of its walks."""

    at_ns: int
    num_together: int
    shares: Mapping[Place, Share]
    between_us: Mapping[int, float]


@dataclass(slots=True)
class Samples:
    """`num_taken` counts all that there ever were, the newest at `newest_ns`."""

    num_taken: int = 0
    newest_ns: int = 0
    _taken: dict[int, deque[int]] = field(default_factory=dict)
    _shares: dict[Place, dict[int, deque[tuple[int, Share]]]] = field(default_factory=dict)
    _between: deque[tuple[int, Mapping[int, float]]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def wants(self, now_ns: int, num_together: int) -> bool:
        taken = self._taken.get(num_together)
        return taken is None or len(taken) <= FEW or now_ns - taken[-1] >= EVERY_NS

    def add(self, sample: Sample) -> None:
        at_ns = sample.at_ns
        self.num_taken += 1
        self.newest_ns = at_ns
        self._taken.setdefault(sample.num_together, deque(maxlen=FEW + 1)).append(at_ns)
        for place, share in sample.shares.items():
            _add(self._shares.setdefault(place, {}).setdefault(share.num_together, deque(maxlen=WINDOW)), at_ns, share)
        _add(self._between, at_ns, sample.between_us)

    def typical_us(self, num: int = 1) -> dict[Place, float]:
        """Of one of `num` requests at once, with what a rank does between two steps: the least that was seen, as then
        nothing else ran."""
        between_us: dict[int, float] = {}
        for _, of_ranks in self._between:
            for rank, each_us in of_ranks.items():
                between_us[rank] = min(between_us.get(rank, MAX_BETWEEN_US), each_us)
        return {
            place: _cost_us(self._good(by_number), num, between_us.get(place[1], MAX_BETWEEN_US))
            for place, by_number in self._shares.items()
        }

    def longest_step_us(self) -> dict[int, float]:
        """By rank."""
        longest_us: dict[int, float] = {}
        for (_, rank), by_number in self._shares.items():
            for window in by_number.values():
                step_us = typical([share.step_us for _, share in window])
                longest_us[rank] = max(longest_us.get(rank, 0.0), step_us)
        return longest_us

    def _good(self, by_number: Mapping[int, deque[tuple[int, Share]]]) -> dict[int, list[Share]]:
        """Those of which there are enough and that are not too old, if there are any; else those of the fewest."""
        good = {
            num: [share for _, share in window]
            for num, window in by_number.items()
            if num == 1 or (len(window) >= ENOUGH and self.newest_ns - window[-1][0] <= TOO_OLD_NS)
        }
        if good:
            return good
        fewest = min(by_number)
        return {fewest: [share for _, share in by_number[fewest]]}


def _cost_us(by_number: Mapping[int, Sequence[Share]], num: int, between_us: float) -> float:
    """The share of one of `num` in what all of them take, at most."""
    costs_us = []
    for num_together, shares in by_number.items():
        each_us = [share.run_us + share.num_steps * between_us for share in shares]
        share_us = max(each_us) if num_together > 1 and len(each_us) <= FEW else typical(each_us)
        costs_us.append(share_us * max(1.0, num_together / num))
    return min(costs_us)


def _add(window: deque[tuple[int, T]], at_ns: int, value: T) -> None:
    """And forget what is old, but for ENOUGH."""
    window.append((at_ns, value))
    while len(window) > ENOUGH and at_ns - window[0][0] > OLD_NS:
        window.popleft()


def together(parts: Iterable[tuple[str, WalkDone]]) -> int:
    """How many requests were in a step of it on average, rounded up."""
    num_own = num_others = 0
    for _, part in parts:
        for time in part.node_times.values():
            num_own += time.num_steps + time.batched_own
            num_others += time.batched_with
    return 1 - (-num_others // num_own) if num_own else 1


def sample_of(parts: Sequence[tuple[str, WalkDone]], iterations: Mapping[Place, float], now_ns: int) -> Sample:
    """`parts` are what each rank told of each walk, `iterations` how often a use ran for one time that it counts."""
    shares: dict[Place, Share] = {}
    between_us: dict[int, float] = {}
    for walk, part in parts:
        num_steps = 0.0
        for name, time in part.node_times.items():
            num_steps += time.num_steps / _num_own(time)
            place = (walk, name), part.rank
            share = _share(time, iterations.get(place, 1.0))
            before = shares.get(place)
            if before is None:
                shares[place] = share
            else:
                before.add(share)
        each_us = part.wait_us / num_steps if num_steps else MAX_BETWEEN_US
        between_us[part.rank] = min(between_us.get(part.rank, MAX_BETWEEN_US), each_us)
    return Sample(now_ns, together(parts), shares, between_us)


def _share(time: NodeTime, iterations: float) -> Share:
    if not time.num_steps:
        return Share(0.0, 0.0)
    num_own = _num_own(time)
    num_together = 1.0 + time.batched_with / time.num_steps / num_own
    part = 1.0 / num_own / num_together / iterations
    step_us = time.run_us / time.num_steps
    return Share(time.run_us * part, time.num_steps * part, math.ceil(num_together - 1e-9), step_us)


def _num_own(time: NodeTime) -> float:
    """Units of the request in a step, on average: each of them counts the whole step. Where not all steps have as many,
    and longer ones have more, a share is a few percent too small: 3 for BAGEL, 8 of whose 49 steps have one branch."""
    return 1.0 + time.batched_own / max(1, time.num_steps)


def typical(values: Sequence[float]) -> float:
    ordered = sorted(values)
    index = (len(ordered) - 1) // 2 if len(ordered) <= FEW else math.ceil(0.9 * len(ordered)) - 1
    return ordered[index]
