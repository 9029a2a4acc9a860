"""What is measured against one another, and what the segments of each case gave together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.mixed.deployments import DEADLINE, PAINTER, PLANNER, SYSTEMS
from benchmarks.mixed.loads import Came
from benchmarks.mixed.robots import Tick
from benchmarks.mixed.timeline import EMPTY, Scene
from mstar_rt.client import AsyncClient


@dataclass(frozen=True)
class Case:
    """`robot` says whether there is one; `load` are the models that others ask for."""

    system: str
    robot: bool = True
    load: tuple[str, ...] = (PLANNER, PAINTER)

    @property
    def name(self) -> str:
        if not self.robot:
            return "painters"
        return "mixed" if self.load else "alone"


ALONE, PAINTERS = Case(DEADLINE, load=()), Case(DEADLINE, robot=False, load=(PAINTER,))
MIXED = {system: Case(system) for system in SYSTEMS}
CASES = (ALONE, *MIXED.values(), PAINTERS)


@dataclass(frozen=True)
class Moment:
    """`counters` are summed over the workers of a system."""

    at_ns: int
    counters: dict[str, float]

    @classmethod
    async def now(cls, client: AsyncClient, ranks: Sequence[int]) -> Moment:
        processes = (await client.stats()).processes
        at_ns = time.monotonic_ns()
        counters: dict[str, float] = {}
        for rank in ranks:
            for name, value in processes[f"worker/{rank}"].items():
                counters[name] = counters.get(name, 0.0) + value
        return cls(at_ns, counters)


@dataclass
class Measured:
    """What all segments of one case gave. `busy_s`: the workers' time in steps, by class; `timeline`: the end of the
    last segment.
    """

    seconds: float = 0.0
    ticks: list[Tick] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    over_bound: float = 0.0
    timeline: Scene = EMPTY

    def add(self, begin: Moment, end: Moment) -> None:
        self.seconds += (end.at_ns - begin.at_ns) / 1e9
        for name, value in end.counters.items():
            kind, _, label = name.partition("/")
            grown = value - begin.counters.get(name, 0.0)
            if kind == "busy_us":
                self.busy_s[label] = self.busy_s.get(label, 0.0) + grown / 1e6
            elif kind == "over_bound":
                self.over_bound += grown
