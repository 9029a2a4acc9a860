"""The scheduling policy that a worker is configured with."""

from __future__ import annotations

from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.scheduler import Scheduler
from mstar_rt.worker.scheduler_plain import FirstComeFirstServed, RoundRobin
from mstar_rt.worker.unit import SchedulingPolicy, T


def choose_policy(
    scheduling: str, max_batch: int, costs: CostModel, lower_class_share: float, max_step_ns: int | None
) -> SchedulingPolicy[T]:
    """See config.WorkerConfig for the names."""
    if scheduling == "fcfs":
        return FirstComeFirstServed(max_batch)
    if scheduling == "round_robin":
        return RoundRobin(max_batch)
    assert scheduling == "deadline", scheduling
    return Scheduler(max_batch, costs, lower_class_share, max_step_ns)
