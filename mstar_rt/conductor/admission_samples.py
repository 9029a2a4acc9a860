"""What some requests took, and what one of them typically costs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mstar_rt.message import NodeTime, WalkDone

WINDOW = 64
"""Requests that are remembered."""
FEW = 8
"""Of up to so many the middle one counts, as one of three may have been disturbed; of more the 90th percentile: whoever
shares steps now may run alone soon."""
ENOUGH = 3
"""From how many on they stand for themselves."""
EVERY_NS = 230_000_000
"""Of more than FEW, one in this time is taken: control ticks wait for it. No multiple of usual periods, or it would be
the same robot's each time."""
OLD_NS = 30_000_000_000
"""What was measured so long before the newest does not count: the machine may have been busy then."""
MAX_BETWEEN_US = 300.0
"""What passes between two steps, at most: where others use the rank, more is seen than belongs to the step."""

Use = tuple[str, str]
"""(walk, use of a node in it)."""
Place = tuple[Use, int]
"""A use on a rank."""


@dataclass(slots=True)
class Share:
    """A request's share of the steps that it was in, for one iteration of each loop that an option turns: the time that
    they ran, and how many they were."""

    run_us: float
    num_steps: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. `between_us` is how long each rank let it wait per step, the least of its walks."""

    at_ns: int
    shares: Mapping[Place, Share]
    between_us: Mapping[int, float]


@dataclass(slots=True)
class Samples:
    """The newest last. `num_taken` counts all that there ever were."""

    taken: deque[Sample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_taken: int = 0

    def wants(self, now_ns: int) -> bool:
        return len(self.taken) <= FEW or now_ns - self.taken[-1].at_ns >= EVERY_NS

    def add(self, sample: Sample) -> None:
        self.taken.append(sample)
        self.num_taken += 1
        while len(self.taken) > ENOUGH and sample.at_ns - self.taken[0].at_ns > OLD_NS:
            self.taken.popleft()

    def typical_us(self) -> dict[Place, float]:
        """Of a request, with what a rank does between two steps: the least that was seen, as then nothing else ran."""
        between_us: dict[int, float] = {}
        for sample in self.taken:
            for rank, each_us in sample.between_us.items():
                between_us[rank] = min(between_us.get(rank, MAX_BETWEEN_US), each_us)
        costs_us: dict[Place, list[float]] = {}
        for sample in self.taken:
            for place, share in sample.shares.items():
                cost_us = share.run_us + share.num_steps * between_us[place[1]]
                costs_us.setdefault(place, []).append(cost_us)
        return {place: typical(values) for place, values in costs_us.items()}


def sample_of(parts: Iterable[tuple[str, WalkDone]], iterations: Mapping[Place, float], now_ns: int) -> Sample:
    """`parts` are what each rank told of each walk, `iterations` how often a use ran for one time that it counts."""
    shares: dict[Place, Share] = {}
    between_us: dict[int, float] = {}
    for walk, part in parts:
        num_steps = 0
        for name, time in part.node_times.items():
            num_steps += time.num_steps
            place = (walk, name), part.rank
            share = _share(time, iterations.get(place, 1.0))
            before = shares.get(place)
            if before is None:
                shares[place] = share
            else:
                before.run_us += share.run_us
                before.num_steps += share.num_steps
        each_us = part.wait_us / num_steps if num_steps else MAX_BETWEEN_US
        between_us[part.rank] = min(between_us.get(part.rank, MAX_BETWEEN_US), each_us)
    return Sample(now_ns, shares, between_us)


def _share(time: NodeTime, iterations: float) -> Share:
    if not time.num_steps:
        return Share(0.0, 0.0)
    part = 1.0 / (1.0 + time.batched_with / time.num_steps) / iterations
    return Share(time.run_us * part, time.num_steps * part)


def typical(values: Sequence[float]) -> float:
    ordered = sorted(values)
    index = (len(ordered) - 1) // 2 if len(ordered) <= FEW else math.ceil(0.9 * len(ordered)) - 1
    return ordered[index]
