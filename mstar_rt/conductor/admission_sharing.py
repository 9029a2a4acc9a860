"""Whether robots that do the same on one rank, and share steps there, all have their chunks in time. Pure.

Robots that come while others are served wait for them, and share steps meanwhile with whoever waits as well. So the
more there are the less each of them takes, and they may be more than there would be time for one after another. That
they are in time does not follow from that: it has to hold for observations at the worst of moments.

Take an observation that comes just after a batch of others was begun. It waits for these, then for its own batch, and
none in the one is in the other, as long as nobody has waited beyond his period. So of `num` robots it waits at most

    max over k of  cost(k) + cost(num - k)

and besides, for one step of other work that had begun, for the share that lower classes get of all this, and for the
messages of those that came together with it. If that is less than everybody's deadline, nobody ever waits longer: the
first one who did would contradict it. That is so in the order of deadlines; where the scheduler lets others catch up
first, it keeps two thirds of the time that is left. Costs are estimates and machines stall, so there is a margin. That
a batch fits into a period is not enough: simulated, a third to a half of such loads missed ticks by the dozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mstar_rt.conductor.admission_costs import CostBook
from mstar_rt.config import WorkerConfig
from mstar_rt.model import ServedModel
from mstar_rt.placement import Placement

WAITED_PART = 0.8
"""Of a deadline. Of robots that were let in up to the whole of it each missed one or two ticks in a thousand."""
MESSAGES_S = 0.001
"""Of each observation, from the server and back; those that come together wait for one another there."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """`num` robots on a rank, of which `cost_s` of so many take that long together. `rate_hz` is what those of them ask
    for that are there, and `deadline_s` the shortest of theirs; one more wants to come. `other_step_s` is the longest
    step of other work, `lower_share` what lower classes get. Costs are of 1 to `num` robots.
    """

    rank: int
    num: int
    cost_s: Callable[[int], float]
    rate_hz: float
    deadline_s: float
    other_step_s: float
    lower_share: float

    @property
    def wait_s(self) -> float:
        """From an observation to its chunk, at most."""
        longest_s = max([self._cost_s(before) + self.cost_s(self.num - before) for before in range(self.num)])
        return longest_s / (1.0 - self.lower_share) + self.other_step_s + self.num * MESSAGES_S

    def fitting_hz(self, bound: float, deadline_s: float | None) -> float:
        """How often the one that comes may want a chunk, within `deadline_s` or else within its period; 0 if not."""
        wait_s, each_s = self.wait_s / WAITED_PART, self.cost_s(self.num) / self.num
        if wait_s > self.deadline_s or (deadline_s is not None and wait_s > deadline_s):
            return 0.0
        left_hz = min(bound, 1.0 - self.lower_share) / each_s - self.rate_hz if each_s else math.inf
        return max(0.0, min(left_hz, 1.0 / wait_s))

    def _cost_s(self, num: int) -> float:
        return self.cost_s(num) if num else 0.0


class Sharing:
    """Of which ranks it can be told that robots share steps in time: those in the order of deadlines on which other
    work has a bound on its steps."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        placement: Placement,
        costs: CostBook,
        workers: Iterable[WorkerConfig],
    ) -> None:
        self._costs = costs
        self._tasks = [(model.name, task.name) for model in models.values() for task in model.tasks]
        self._with_lower = {
            rank
            for model in models.values()
            for task in model.tasks
            for walk in task.walks
            for ranks in placement.use_ranks(model.name, walk)
            for rank in ranks
            if task.criticality != "control"
        }
        self._workers = {
            worker.rank: worker
            for worker in workers
            if worker.scheduling == "deadline"
            and (worker.max_step_ms is not None or worker.rank not in self._with_lower)
        }

    def is_known_on(self, rank: int) -> bool:
        return rank in self._workers

    def lower_share(self, rank: int) -> float:
        return self._workers[rank].lower_class_share if rank in self._with_lower else 0.0

    def other_step_s(self, rank: int) -> float:
        """As bounded, or as measured if some node cannot keep the bound."""
        measured_us = [self._costs.of(*task).longest_step_us().get(rank, 0.0) for task in self._tasks]
        return max((self._workers[rank].max_step_ms or 0.0) / 1e3, max(measured_us, default=0.0) / 1e6)
