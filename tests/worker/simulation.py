"""A worker on a virtual clock: periodic and saturating loads through a scheduling policy, with costs that it learns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.remaining_time import Mark, Pace, RemainingTime
from mstar_rt.worker.scheduler_choice import choose_policy
from mstar_rt.worker.unit import SchedulingPolicy, Unit

MS = 1_000_000


@dataclass(frozen=True)
class Stage:
    """One node: what a step of it takes alone, and what every further unit in it adds."""

    node: str
    alone_ns: int
    each_ns: int

    def step_ns(self, num_units: int) -> int:
        return self.alone_ns + self.each_ns * (num_units - 1)


@dataclass(frozen=True)
class Load:
    """Requests of one client: one every `period_ns`, or with None one as soon as the one before is over, for ever."""

    client: str
    criticality: str
    stages: tuple[Stage, ...]
    period_ns: int | None = None
    budget_ns: int | None = None
    offset_ns: int = 0
    model: str = "m"
    num_requests: int | None = None


@dataclass(eq=False)
class Request:
    load: Load
    name: str
    age: int
    arrived_ns: int
    pace: Pace
    stage: int = 0
    ran_ns: int = 0
    sure_ns: int = 0
    marks: list[Mark] = field(default_factory=list)

    @property
    def deadline_ns(self) -> int | None:
        return None if self.load.budget_ns is None else self.arrived_ns + self.load.budget_ns


@dataclass
class Step:
    start_ns: int
    end_ns: int
    criticality: str
    node: str
    clients: list[str]


@dataclass
class Score:
    """What became of a client's requests."""

    latencies_ns: list[int] = field(default_factory=list)
    num_late: int = 0
    num_dropped: int = 0

    @property
    def miss_rate(self) -> float:
        num_missed = self.num_late + self.num_dropped
        return num_missed / max(1, len(self.latencies_ns) + self.num_dropped)


class Simulation:
    """Time passes with steps only, and with waiting for the next arrival while nothing is ready. Warm-ups take
    `warm_up_factor` times as long as what follows."""

    def __init__(
        self, scheduling: str, loads: Sequence[Load], max_batch: int = 16, share: float = 0.05, jitter: float = 0.0,
        warm_up_factor: float = 1.0,
    ) -> None:  # fmt: skip
        self.costs = CostModel()
        self.now_ns = 0
        self.steps: list[Step] = []
        self.scores = {load.client: Score() for load in loads}
        self._policy: SchedulingPolicy[Request] = choose_policy(scheduling, max_batch, self.costs, share, None)
        self._remaining = RemainingTime()
        self._random = random.Random(0)
        self._jitter = jitter
        self._num_units, self._num_requests = count(1), count(1)
        self._arrivals: list[tuple[int, int, Load, int]] = []
        for load in loads:
            self._warm_up(load, warm_up_factor)
        for number, load in enumerate(loads):
            heappush(self._arrivals, (load.offset_ns, number, load, 0))

    def run(self, until_ns: int) -> None:
        while self.now_ns < until_ns:
            self._arrive()
            decision = self._policy.next_batch(self.now_ns)
            for unit in decision.dropped:
                request = unit.work
                if request.deadline_ns is not None and self.now_ns >= request.deadline_ns:
                    request.pace.stopped(request.marks, request.ran_ns, (request.stage, ()))
                self.scores[unit.work.load.client].num_dropped += 1
                self._again(unit.work.load)
            if decision.batch:
                self._step(decision.batch)
            elif not len(self._policy):
                if not self._arrivals:
                    return
                self.now_ns = max(self.now_ns, self._arrivals[0][0])
            else:
                assert decision.dropped, "the policy idles while units are ready"

    def busy_ns(self, criticality: str) -> int:
        return sum(step.end_ns - step.start_ns for step in self.steps if step.criticality == criticality)

    def _warm_up(self, load: Load, factor: float) -> None:
        """Each task alone, and ticks also together, as often as it takes to count."""
        for num in (2, 2, 4, 4, 8, 8) if load.criticality == "control" else ():
            for stage in load.stages:
                took_ns = int(stage.step_ns(num) * factor)
                self.costs.observe((load.model, stage.node), None, num, took_ns, is_warm_up=True)
        pace = self._remaining.pace(load.model)
        for _ in range(4):
            marks: list[Mark] = []
            ran_ns = 0
            for index, stage in enumerate(load.stages):
                took_ns = int(stage.alone_ns * factor)
                self.costs.observe((load.model, stage.node), None, 1, took_ns, is_warm_up=True)
                marks.append(((index, ()), ran_ns, ran_ns))
                ran_ns += took_ns
            pace.finished(marks, ran_ns, ran_ns, is_warm_up=True)

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            due_ns, number, load, index = heappop(self._arrivals)
            self._begin(load, due_ns)
            if load.period_ns is not None and (load.num_requests is None or index + 1 < load.num_requests):
                heappush(self._arrivals, (due_ns + load.period_ns, number, load, index + 1))

    def _begin(self, load: Load, now_ns: int) -> None:
        number = next(self._num_requests)
        request = Request(load, f"{load.client}-{number}", number, now_ns, self._remaining.pace(load.model))
        self._add(request)

    def _again(self, load: Load) -> None:
        if load.period_ns is None:
            self._begin(load, self.now_ns)

    def _add(self, request: Request) -> None:
        load, index, deadline_ns = request.load, request.stage, request.deadline_ns
        position = (index, ())
        needed_ns, least_ns = request.pace.needed.get(position, (None, 0))
        drop_after_ns = None if deadline_ns is None else deadline_ns - max(1, least_ns)
        unit = Unit(
            request.name, (load.model, load.stages[index].node), None, load.criticality, index, next(self._num_units),
            self.now_ns, request, deadline_ns, 1, load.client, request.age, load.model,
            needed_ns, drop_after_ns,
        )  # fmt: skip
        self._policy.add_one(unit)

    def _step(self, batch: list[Unit[Request]]) -> None:
        first = batch[0].work
        stage = first.load.stages[first.stage]
        factor = 1 + self._jitter * self._random.random()
        duration_ns = int(stage.step_ns(len(batch)) * factor)
        start_ns, self.now_ns = self.now_ns, self.now_ns + duration_ns
        clients = [unit.work.load.client for unit in batch]
        self.steps.append(Step(start_ns, self.now_ns, first.load.criticality, stage.node, clients))
        self._policy.ran(batch, duration_ns)
        self.costs.observe(batch[0].engine_id, None, len(batch), duration_ns)
        self._arrive()
        alone_ns = min(duration_ns, self.costs.predict_ns(batch[0].engine_id, None, 1) or duration_ns)
        for unit in batch:
            self._advance(unit.work, duration_ns, alone_ns)

    def _advance(self, request: Request, duration_ns: int, alone_ns: int) -> None:
        request.marks.append(((request.stage, ()), request.ran_ns, request.sure_ns))
        request.ran_ns += duration_ns
        request.sure_ns += alone_ns
        request.stage += 1
        if request.stage < len(request.load.stages):
            self._add(request)
            return
        request.pace.finished(request.marks, request.ran_ns, request.sure_ns)
        score = self.scores[request.load.client]
        score.latencies_ns.append(self.now_ns - request.arrived_ns)
        if request.deadline_ns is not None and self.now_ns > request.deadline_ns:
            score.num_late += 1
        self._again(request.load)
