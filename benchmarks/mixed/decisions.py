"""What the scheduler itself costs per step, with 1, 16 and 256 units ready, of all classes and several nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.mixed.deployments import DEADLINE, SYSTEMS
from benchmarks.report import Report, Row
from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.scheduler_choice import SchedulingPolicy, choose_policy
from mstar_rt.worker.unit import Unit

NUM_READY = (1, 16, 256)
NUM_WARMUPS, NUM_DECISIONS = 200, 2000
MAX_BATCH = 16
NUM_OBSERVED = 16
STEP_NS = 2_000_000
KINDS = (
    ("control", "policy", ("see", "denoise"), 50_000_000),
    ("planning", "planner", ("predict", "score"), 500_000_000),
    ("generation", "painter", ("paint", "develop"), None),
    ("generation", "speaker", ("decode", "codec"), None),
)
"""Class, model, its nodes, and how long after it is ready a unit's deadline is."""


def scheduling_cost(num_ready: int, system: str = DEADLINE) -> Mapping[str, np.ndarray]:
    """Seconds of each decision, with what is noted after its step, and of making as many units ready as it took;
    `num_ready` units are ready before each.
    """
    units = _units()
    scheduler = _scheduler(system)
    for _ in range(num_ready):
        scheduler.add_one(next(units))
    now_ns, decided_s, added_s = 0, [], []
    for number in range(NUM_WARMUPS + NUM_DECISIONS):
        begin_s = time.perf_counter()
        decision = scheduler.next_batch(now_ns)
        scheduler.ran(decision.batch, STEP_NS)
        between_s = time.perf_counter()
        now_ns += STEP_NS
        fresh = list(itertools.islice(units, len(decision.batch) + len(decision.dropped)))
        add_s = time.perf_counter()
        for unit in fresh:
            scheduler.add_one(unit)
        end_s = time.perf_counter()
        assert decision.batch, "something is ready"
        assert len(scheduler) == num_ready
        if number >= NUM_WARMUPS:
            decided_s.append(between_s - begin_s)
            added_s.append(end_s - add_s)
    return {"decision": np.array(decided_s), "made ready": np.array(added_s)}


def _scheduler(system: str) -> SchedulingPolicy[None]:
    """With every node measured, one unit and full batches."""
    costs = CostModel()
    for _, model, nodes, _ in KINDS:
        for node in nodes:
            for num_items in (1, 4, MAX_BATCH) * NUM_OBSERVED:
                costs.observe((model, node), None, num_items, STEP_NS // 2 + num_items * STEP_NS // 8)
    return choose_policy(system, MAX_BATCH, costs, lower_class_share=0.05, max_step_ns=4 * STEP_NS)


def _units() -> Iterator[Unit[None]]:
    """Endlessly, in equal numbers of each kind and node."""
    turns = itertools.cycle([(kind, node) for kind in KINDS for node in range(len(kind[2]))])
    for number, ((criticality, model, nodes, budget_ns), node) in enumerate(turns):
        ready_ns = number // 8 * STEP_NS
        request = f"{model}-{number % 64}"
        yield Unit(
            request, (model, nodes[node]), None, criticality, node, number, ready_ns, None,
            deadline_ns=None if budget_ns is None else ready_ns + budget_ns, client=request, age=number, walk_key=model,
            remaining_ns=4 * STEP_NS,
        )  # fmt: skip


def measure(report: Report) -> None:
    for num_ready in NUM_READY:
        case = f"scheduling, {num_ready} ready"
        for system in SYSTEMS:
            for part, seconds in scheduling_cost(num_ready, system).items():
                p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
                report.rows += [
                    Row(case, system, f"{part} p50", float(p50), "us"),
                    Row(case, system, f"{part} p99", float(p99), "us"),
                ]
