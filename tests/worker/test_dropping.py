"""A worker ends what cannot be answered in time before it computes it, and learns again what it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import toy_model

from mstar_rt.clock import ManualClock
from mstar_rt.config import WorkerConfig
from mstar_rt.message import CancelRequest, ReleaseScope, StartWalk, WalkDone, WalkFailed
from mstar_rt.model import NodeCall, NodeResult
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import load_model
from mstar_rt.worker.remaining_time import ENOUGH, TRIAL_EVERY
from mstar_rt.worker.worker import Worker

MS = 1_000_000


class Rig:
    """A worker whose node `add` takes `step_ms` on its clock, and `keep` `keep_ms`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scheduling: str = "deadline") -> None:
        self.clock, self.step_ms, self.keep_ms = ManualClock(), 10.0, 0.0
        add, keep = toy_model.Add.run, toy_model.Copy.run

        def slow_add(node: toy_model.Add, calls: Sequence[NodeCall]) -> list[NodeResult]:
            self.clock.advance_ns(int(self.step_ms * MS))
            return add(node, calls)

        def slow_keep(node: toy_model.Copy, calls: Sequence[NodeCall]) -> list[NodeResult]:
            self.clock.advance_ns(int(self.keep_ms * MS))
            return keep(node, calls)

        monkeypatch.setattr(toy_model.Add, "run", slow_add)
        monkeypatch.setattr(toy_model.Copy, "run", slow_keep)
        loaded = load_model(toy_model.declare("toy", "", {}), WorkerConfig(rank=0, kv_memory_mb=1))
        self.nodes = {name: len(program.nodes) for name, program in loaded.programs.items()}
        hub, planes = InProcessHub(), InProcessPlanes()
        self.conductor, server, endpoint = (hub.endpoint(name) for name in ("conductor", "server", "worker/0"))
        self.plane = planes.plane(server)
        self.worker = Worker({"toy": loaded}, endpoint, planes.plane(endpoint), self.clock, scheduling=scheduling)
        self.ends: dict[str, WalkDone | WalkFailed] = {}
        self.num_walks = 0

    def start(
        self,
        request: str,
        budget_ms: float | None = None,
        steps: int = 1,
        anytime: bool = False,
        is_warm_up: bool = False,
        walk: str = "count",
    ) -> None:
        self.num_walks += 1
        ref = self.plane.put("float32", (1,), b"\0\0\0\0", ["worker/0"])
        deadline_ns = None if budget_ms is None else self.clock.now_ns() + int(budget_ms * MS)
        params: dict[str, bool | int | float | str | list[float]] = {
            "steps": steps, "misbehave": "no", "leave_at": 1000,
        }  # fmt: skip
        self.conductor.send(
            "worker/0",
            StartWalk(
                request, "toy", walk, self.num_walks, self.num_walks, [0] * self.nodes[walk], request,
                {"x": ref}, params, deadline_ns, "control", "server", anytime=anytime, is_warm_up=is_warm_up,
            ),
        )  # fmt: skip

    def turn(self) -> None:
        self.worker.turn(0.0)
        for envelope in self.conductor.receive(0.0):
            end = envelope.message
            assert isinstance(end, WalkDone | WalkFailed)
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end
            self.conductor.send("worker/0", ReleaseScope(end.request_id))

    def run(self, request: str, *args: float, **options: bool | int | str) -> WalkDone | WalkFailed:
        self.start(request, *args, **options)  # type: ignore[arg-type]
        while request not in self.ends:
            self.turn()
        self.turn()
        return self.ends[request]

    def together(self, requests: Sequence[str], walk: str) -> None:
        """At the same time, so that they share steps."""
        for request in requests:
            self.start(request, walk=walk)
        while not self.ends.keys() >= set(requests):
            self.turn()
        self.turn()

    def warm(self, steps: int = 1) -> None:
        """With requests of others."""
        for number in range(1 + ENOUGH):
            self.run(f"warm {steps} {number}", steps=steps)

    @property
    def num_computed(self) -> float:
        return self.worker.stats()["units_total"]


def message(end: WalkDone | WalkFailed) -> str:
    assert isinstance(end, WalkFailed)
    assert end.code == "DEADLINE_EXCEEDED"
    return end.message


def test_what_needs_more_time_than_is_left_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.warm()
    before = rig.num_computed
    assert message(rig.run("late", 9)) == (
        "9.0 ms were left when node 'add' could run, and the request takes at least 10.0 ms from there: it was not "
        "computed, give it more time (budget_ms)"
    )
    assert rig.num_computed == before
    assert isinstance(rig.run("fine", 11), WalkDone)
    stats = rig.worker.stats()
    assert (stats["drops/hopeless"], stats["misses/control"]) == (1, 1)


def test_without_a_measurement_and_in_other_orders_only_what_is_late_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh, fcfs = Rig(monkeypatch), Rig(monkeypatch, "fcfs")
    assert isinstance(fresh.run("first", 9), WalkDone)
    assert fresh.worker.stats()["misses/control"] == 1
    fcfs.warm()
    assert isinstance(fcfs.run("late", 9), WalkDone)
    assert fcfs.worker.stats()["misses/control"] == 1


def test_long_walks_do_not_make_short_ones_look_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.warm(steps=20)
    rig.warm(steps=1)
    assert isinstance(rig.run("short", 15, steps=1), WalkDone)


def test_an_estimate_from_a_slow_moment_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for less than it seems to take, so only a trial can show that it takes less."""
    rig = Rig(monkeypatch)
    rig.step_ms = 90
    rig.warm()
    rig.step_ms = 10
    ends = [rig.run(f"tick {number}", 50) for number in range(TRIAL_EVERY + 5)]
    assert [isinstance(end, WalkDone) for end in ends] == [False] * (TRIAL_EVERY - 1) + [True] * 6


@pytest.mark.parametrize("factor", [3, 10])
def test_a_warm_up_in_a_slow_moment_drops_nothing(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    rig = Rig(monkeypatch)
    for round_ in range(2):  # the second one is another rank's, which was started again
        rig.step_ms = 10 * factor
        for number in range(4):
            rig.run(f"warm-up {round_} {number}", is_warm_up=True)
        rig.step_ms = 10
        assert all(isinstance(rig.run(f"tick {round_} {number}", 15), WalkDone) for number in range(5))
    assert "takes at least 10.0 ms" in message(rig.run("late", 9)), "what cannot be in time is still dropped"


def test_an_anytime_walk_that_has_begun_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.warm(steps=3)
    assert isinstance(rig.run("begun", 15, steps=3, anytime=True), WalkDone)
    rig.start("not begun", 15, steps=3, anytime=True)
    rig.clock.advance_ns(15 * MS)
    rig.turn()
    assert message(rig.ends["not begun"]) == (
        "the deadline passed 0.0 ms before node 'add' could run: give it more time (budget_ms)"
    )


def test_dropped_requests_leave_nothing_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.warm()
    for number in range(5):
        rig.start(f"late {number}", 5)
        rig.start(f"fine {number}", 100)
    rig.conductor.send("worker/0", CancelRequest("fine 4"))
    for _ in range(4):
        rig.turn()
    assert {name for name, end in rig.ends.items() if isinstance(end, WalkFailed)} == {f"late {i}" for i in range(5)}
    assert all(isinstance(rig.ends[f"fine {i}"], WalkDone) for i in range(4))
    stats = rig.worker.stats()
    assert stats["active_walks"] == stats["ready_units"] == 0


def test_what_was_only_ever_run_with_others_is_not_dropped_where_it_could_be_in_time_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.warm()
    for batch in range(8):
        rig.step_ms = 30
        rig.together([f"r {batch} {number}" for number in range(6)], "count")
        rig.step_ms = 10
    assert isinstance(rig.run("alone", 12), WalkDone), "six of them take 30 ms"


def test_branches_that_share_a_step_are_known_to_cost_what_they_cost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    for batch in range(1 + ENOUGH):
        rig.keep_ms = 10
        rig.run(f"one {batch}", walk="keep")
        rig.keep_ms = 12
        rig.together([f"left {batch}", f"right {batch}"], "keep")
        rig.keep_ms = 40
        rig.together([f"other {batch} {number}" for number in range(6)], "twice")
    rig.keep_ms = 12
    assert isinstance(rig.run("two branches", 14, walk="twice"), WalkDone), "one branch alone takes 10 ms"
    assert "takes at least 12.0 ms" in message(rig.run("late", 11, walk="twice"))
