"""Mixed loads on a virtual clock: who misses under which policy, what starves, what still shares steps."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from simulation import MS, Load, Simulation, Stage

from mstar_rt.worker.scheduler_share import PATIENCE_NS

SEE, PREFIX = Stage("see", 3 * MS, MS), Stage("prefix", 2 * MS, MS)
POLICY = (SEE, PREFIX, *[Stage("denoise", MS, MS // 8)] * 5, Stage("finish", MS // 5, MS // 5))
PLAN = (Stage("encode", 4 * MS, 2 * MS), *[Stage("predict", 6 * MS, 4 * MS)] * 8)
PAINTING = (*[Stage("paint", 7 * MS, 5 * MS)] * 20, Stage("develop", 8 * MS, 8 * MS))


def robot(number: int = 0, offset_ns: int = 0) -> Load:
    return Load(f"robot{number}", "control", POLICY, 50 * MS, 50 * MS, offset_ns, "policy")


def crowd() -> list[Load]:
    """More ticks than the worker can serve, in batches or not."""
    return [Load(f"robot{i}", "control", POLICY, 10 * MS, 80 * MS, i * MS, "policy") for i in range(6)]


PLANNER = Load("planner", "planning", PLAN, model="planner")
PAINTER = Load("painter", "generation", PAINTING, model="painter")


def mixed(scheduling: str, jitter: float = 0.1) -> Simulation:
    simulation = Simulation(scheduling, [robot(offset_ns=3 * MS), PLANNER, PAINTER], jitter=jitter)
    simulation.run(20_000 * MS)
    return simulation


def test_control_ticks_overtake_and_miss_nothing_where_other_orders_miss_most() -> None:
    by_deadline, fcfs, round_robin = mixed("deadline"), mixed("fcfs"), mixed("round_robin")
    score = by_deadline.scores["robot0"]
    assert (score.num_late, score.num_dropped, len(score.latencies_ns)) == (0, 0, 400)
    alone_ns = sum(stage.alone_ns for stage in POLICY)
    longest_step_ns = max(stage.alone_ns for stage in (*PLAN, *PAINTING))
    assert max(score.latencies_ns) <= (alone_ns + longest_step_ns) * 1.1
    assert fcfs.scores["robot0"].miss_rate > 0.5
    assert round_robin.scores["robot0"].miss_rate > 0.5


def test_what_is_left_by_control_is_used_by_the_others() -> None:
    simulation = mixed("deadline", jitter=0.0)
    assert sum(step.end_ns - step.start_ns for step in simulation.steps) >= 19_990 * MS
    spare_ns = 20_000 * MS - simulation.busy_ns("control")
    assert simulation.busy_ns("planning") + simulation.busy_ns("generation") >= 0.99 * spare_ns
    assert simulation.busy_ns("generation") >= 0.04 * spare_ns, "planning saturates; generation keeps its share"


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3])
def test_a_saturating_class_leaves_the_lower_one_its_share(share: float) -> None:
    simulation = Simulation("deadline", [*crowd(), PAINTER], share=share)
    simulation.run(10_000 * MS)
    painted = [step for step in simulation.steps if step.criticality == "generation"]
    longest_wait_ns = max(later.start_ns - step.end_ns for step, later in pairwise(painted))
    assert longest_wait_ns <= (2 * PATIENCE_NS + 8 * MS) / share + 10 * MS
    got = simulation.busy_ns("generation") / 10e9
    assert share - 2 * PATIENCE_NS / 10e9 <= got <= share * 1.1


def test_without_a_share_a_saturating_class_takes_all() -> None:
    simulation = Simulation("deadline", [*crowd(), PAINTER], share=0.0)
    simulation.run(3_000 * MS)
    assert simulation.busy_ns("generation") <= 8 * MS, "the first step, before the robots came"


@pytest.mark.parametrize("spread_ms", [0, 2, 9])
def test_robots_at_equal_rates_meet_and_share_steps(spread_ms: int) -> None:
    """One after another they would take 82 of 50 ms. Of those that come apart the first is not kept waiting."""
    robots = [robot(number, offset_ns=number * spread_ms * MS // 8) for number in range(8)]
    simulation = Simulation("deadline", robots)
    simulation.run(10_000 * MS)
    assert sum(score.num_late + score.num_dropped for score in simulation.scores.values()) == 0
    sizes = Counter(len(step.clients) for step in simulation.steps if step.node == "denoise")
    assert sizes[8] + sizes[7] >= (0.9 if spread_ms == 0 else 0.45) * sum(sizes.values()), sizes


@pytest.mark.parametrize("warm_up_factor", [1.0, 4.0, 10.0])
def test_overload_drops_before_computing_and_serves_what_can_be_served(warm_up_factor: float) -> None:
    """Twice what the worker can do without batches: it drops without wasting time on what is late in the end."""
    heavy = tuple(Stage(f"n{index}", 10 * MS, 10 * MS) for index in range(3))
    loads = [Load(f"r{i}", "control", heavy, 50 * MS, 50 * MS, i * 7 * MS, f"model{i}") for i in range(4)]
    simulation = Simulation("deadline", loads, max_batch=1, warm_up_factor=warm_up_factor)
    simulation.run(10_000 * MS)
    served = sum(len(score.latencies_ns) - score.num_late for score in simulation.scores.values())
    assert served * 30 * MS >= 0.8 * 10_000 * MS
    late = sum(score.num_late for score in simulation.scores.values())
    assert late <= 0.02 * served


def test_clients_of_a_class_get_equal_time() -> None:
    """One asks for ten things at once, the other for one at a time."""
    flood = [Load(f"a{i}", "generation", (Stage(f"flood{i}", 5 * MS, 5 * MS),), model="flood") for i in range(10)]
    greedy = [Load("greedy", load.criticality, load.stages, model=load.model) for load in flood]
    modest = Load("modest", "generation", (Stage("other", 5 * MS, 5 * MS),), model="other")
    simulation = Simulation("deadline", [*greedy, modest])
    simulation.run(20_000 * MS)
    modest_ns = sum(step.end_ns - step.start_ns for step in simulation.steps if step.node == "other")
    assert 0.45 * 20_000 * MS <= modest_ns <= 0.55 * 20_000 * MS


@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_warm_ups_in_a_slow_moment_cost_no_tick(factor: float) -> None:
    """Three to ten times as slow as what follows: by that no tick could be in time, with the load or without."""
    robots = [robot(number, offset_ns=number * 11 * MS) for number in range(4)]
    for loads in (robots, [robot(offset_ns=3 * MS), PLANNER, PAINTER]):
        simulation = Simulation("deadline", loads, warm_up_factor=factor, jitter=0.1)
        simulation.run(3_000 * MS)
        scores = [score for client, score in simulation.scores.items() if client.startswith("robot")]
        assert all(score.latencies_ns and not score.num_late + score.num_dropped for score in scores)


jobs = st.tuples(
    st.integers(0, 60), st.integers(5, 100), st.lists(st.integers(1, 9), min_size=1, max_size=4)
)  # arrival, budget, steps; milliseconds


@settings(max_examples=150, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=12), st.sampled_from([1.0, 3.0, 10.0]))
def test_what_earliest_deadline_first_can_serve_is_served(
    listed: list[tuple[int, int, list[int]]], warm_up_factor: float
) -> None:
    """Of requests that share no node, whatever the plain rule meets all deadlines of, however slow their warm-ups were.
    No two are equal: which of those goes first can matter, as steps are not interrupted."""
    loads = [
        Load(
            f"job{i}", "control", tuple(Stage(f"n{k}", ms * MS, ms * MS) for k, ms in enumerate(steps)), 10**12,
            budget * MS + i, arrival * MS, f"m{i}", num_requests=1,
        )
        for i, (arrival, budget, steps) in enumerate(listed)
    ]  # fmt: skip
    if not _edf_meets_all(loads):
        return
    simulation = Simulation("deadline", loads, warm_up_factor=warm_up_factor)
    simulation.run(10**9)
    assert all(len(score.latencies_ns) == 1 and not score.num_late for score in simulation.scores.values())


def _edf_meets_all(loads: list[Load]) -> bool:
    """Earliest deadline first, which gives way between two steps only."""
    now_ns = 0
    left = {load.client: [stage.alone_ns for stage in load.stages] for load in loads}
    while any(left.values()):
        ready = [load for load in loads if left[load.client] and load.offset_ns <= now_ns]
        if not ready:
            now_ns = min(load.offset_ns for load in loads if left[load.client])
            continue
        load = min(ready, key=lambda load: load.offset_ns + (load.budget_ns or 0))
        now_ns += left[load.client].pop(0)
        if not left[load.client] and now_ns > load.offset_ns + (load.budget_ns or 0):
            return False
    return True
