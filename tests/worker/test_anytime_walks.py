"""What is begun and not finished in time: a policy's flow, a plan's best so far, a picture's strokes. One worker, on a clock that
moves with its steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from anytime_model import DENOISE_NS, IMPROVE_NS, LAST_NS, MS, SEE_NS, STROKE_NS, TICK_NS, declare

from mstar_rt.clock import ManualClock
from mstar_rt.config import WorkerConfig
from mstar_rt.message import CancelRequest, Emitted, EmittedGroup, ReleaseScope, StartWalk, WalkDone, WalkFailed
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import load_model
from mstar_rt.worker.worker import Worker
from policies.anytime.pace import OF, SPENT, WAY_BACK_NS

CRITICALITY = {
    "act": "control", "act_anytime": "control", "plan": "planning", "paint": "generation", "tick": "control",
}  # fmt: skip


class Rig:
    """`given` are the values of each request by name, in the order in which they came; `ended_ns` says when it was over."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        loaded = load_model(declare("m", "", {}), WorkerConfig(rank=0))
        hub, planes = InProcessHub(), InProcessPlanes()
        self.server, self.conductor, endpoint = (hub.endpoint(name) for name in ("server", "conductor", "worker/0"))
        self.plane = planes.plane(self.server)
        self.num_nodes = {name: len(program.nodes) for name, program in loaded.programs.items()}
        self.worker = Worker({"m": loaded}, endpoint, planes.plane(endpoint), self.clock)
        self.given: dict[str, dict[str, list[float]]] = {}
        self.ends: dict[str, WalkDone | WalkFailed] = {}
        self.ended_ns: dict[str, int] = {}
        self.num_walks = 0

    def start(self, request: str, walk: str, left_ns: int | None = None, **params: Any) -> None:
        ref = self.plane.put("float32", (1,), np.zeros(1, np.float32), ["worker/0"])
        defaults = {"num_denoise_steps": 10, "min_denoise_steps": 2, "steps": 10}
        self.num_walks += 1
        self.given[request] = {}
        self.conductor.send(
            "worker/0",
            StartWalk(
                request, "m", walk, inputs={"x": ref}, params=defaults | params, walk_id=self.num_walks,
                age=self.num_walks, node_ranks=[0] * self.num_nodes[walk], scope=request, reply_to="server",
                deadline_ns=None if left_ns is None else self.clock.now_ns() + left_ns,
                criticality=CRITICALITY[walk], anytime=walk == "plan",
            ),
        )  # fmt: skip

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.worker.turn(0.0)
            for envelope in self.server.receive(0.0):
                message = envelope.message
                if isinstance(message, Emitted | EmittedGroup):
                    for record in message.records if isinstance(message, EmittedGroup) else [message]:
                        value = float(np.array(self.plane.view(record.tensor)).reshape(()))
                        self.given[record.request_id].setdefault(record.name, []).append(value)
                        self.plane.release(record.tensor)
                else:
                    self.plane.on_release(message)  # type: ignore[arg-type]
            for envelope in self.conductor.receive(0.0):
                end = envelope.message
                assert isinstance(end, WalkDone | WalkFailed)
                assert end.request_id not in self.ends
                self.ends[end.request_id], self.ended_ns[end.request_id] = end, self.clock.now_ns()
                self.conductor.send("worker/0", ReleaseScope(end.request_id))

    @property
    def is_idle(self) -> bool:
        stats = self.worker.stats()
        return not stats["active_walks"] and not stats["ready_units"]

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            self.turn()
            if self.is_idle:
                return
        raise AssertionError(f"still busy: {self.worker.stats()}")

    def warm(self) -> None:
        """Until the worker knows what steps take, alone."""
        for number in range(4):
            for walk in ("act", "act_anytime", "plan", "paint", "tick"):
                self.start(f"warm {walk} {number}", walk)
                self.run()

    def done(self, request: str) -> WalkDone:
        end = self.ends[request]
        assert isinstance(end, WalkDone), end
        return end

    def is_late(self, request: str) -> bool:
        """It was dropped, being late."""
        end = self.ends[request]
        return isinstance(end, WalkFailed) and end.code == "DEADLINE_EXCEEDED"


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.warm()
    return rig


# ---- a policy's flow


def takes(num_steps: int) -> int:
    return SEE_NS + num_steps * DENOISE_NS * OF // SPENT + LAST_NS + WAY_BACK_NS


@pytest.mark.parametrize("num_steps", [10, 9, 5, 2])
def test_a_flow_fits_into_what_is_left_of_its_budget(rig: Rig, num_steps: int) -> None:
    started_ns = rig.clock.now_ns()
    rig.start("tight", "act_anytime", takes(num_steps))
    rig.run()
    assert rig.given["tight"]["num_denoise_steps"] == [num_steps]
    assert rig.given["tight"]["y"] == pytest.approx([1.0])
    assert rig.done("tight").num_iterations == {"flow": num_steps}
    assert rig.done("tight").flags == (["fewer_steps"] if num_steps < 10 else [])
    assert rig.ended_ns["tight"] - started_ns <= takes(num_steps) - WAY_BACK_NS
    assert rig.is_late("tight") is False


def test_a_plain_flow_that_does_not_fit_is_dropped(rig: Rig) -> None:
    rig.start("plain", "act", takes(5))
    rig.run()
    assert rig.is_late("plain")


def test_long_and_short_walks_before_it_do_not_make_it_look_hopeless(rig: Rig) -> None:
    """All that the worker has seen of this task took ten steps; a walk with time for two is begun all the same."""
    for number in range(20):
        rig.start(f"long {number}", "act_anytime", 100 * MS)
        rig.run()
    rig.start("short", "act_anytime", takes(2))
    rig.run()
    assert rig.given["short"]["num_denoise_steps"] == [2]


@pytest.mark.parametrize("left_ns", [1, MS // 2])
def test_a_flow_that_is_late_already_is_not_begun(rig: Rig, left_ns: int) -> None:
    """Time goes by, or is up, after the images were seen."""
    for request, passed_ns in (("up", 1), ("over", 5 * MS)):
        before = rig.worker.stats()["units_total"]
        rig.start(request, "act_anytime", SEE_NS + left_ns)
        rig.turn(2)
        rig.clock.advance_ns(left_ns - 1 + passed_ns)
        rig.run()
        assert rig.is_late(request)
        assert not rig.given[request]
        assert rig.worker.stats()["units_total"] - before <= 2, "the images, and perhaps the choice"


def in_time(rig: Rig, walk: str, num_robots: int, num_ticks: int = 25, period_ns: int = 50 * MS) -> float:
    """The share of ticks that are answered before the next one; robots are out of step with each other."""
    begin_ns = rig.clock.now_ns()
    due = sorted(
        (begin_ns + tick * period_ns + robot * period_ns * 7 // (8 * num_robots), f"{walk} {num_robots} {robot} {tick}")
        for robot in range(num_robots)
        for tick in range(num_ticks)
    )
    names = [name for _, name in due]
    while due or not rig.is_idle:
        while due and due[0][0] <= rig.clock.now_ns():
            at_ns, name = due.pop(0)
            rig.start(name, walk, at_ns + period_ns - rig.clock.now_ns(), num_denoise_steps=20)
        rig.turn()
        if due and rig.is_idle:
            rig.clock.advance_ns(max(0, due[0][0] - rig.clock.now_ns()))
    return sum(isinstance(rig.ends[name], WalkDone) for name in names) / len(names)


def test_robots_that_are_too_many_for_all_steps_get_chunks_of_fewer(rig: Rig) -> None:
    """Twenty steps of 1 ms, half more for every robot that shares them: three robots at 20 Hz have time for all."""
    assert in_time(rig, "act", 2) == in_time(rig, "act_anytime", 2) == 1.0
    plain, anytime = in_time(rig, "act", 8), in_time(rig, "act_anytime", 8)
    assert plain < 0.7
    assert anytime > 0.95
    steps = [
        given["num_denoise_steps"][0] for name, given in rig.given.items() if name.startswith("act_anytime 8") and given
    ]
    assert 2 <= np.mean(steps) < 20


# ---- a plan


@pytest.mark.parametrize("left_ns", [1, IMPROVE_NS, IMPROVE_NS + 1, 5 * IMPROVE_NS, 7 * IMPROVE_NS - 1, 100 * MS])
@pytest.mark.parametrize("num_rivals", [0, 3])
def test_a_plan_that_has_begun_answers_with_the_best_so_far(rig: Rig, left_ns: int, num_rivals: int) -> None:
    """While control ticks come at every turn for a while, and other plans with it."""
    started_ns = rig.clock.now_ns()
    rig.start("plan", "plan", left_ns, steps=20)
    for number in range(num_rivals):
        rig.start(f"rival {number}", "plan", left_ns + number, steps=20)
    for number in range(12):
        if num_rivals:
            rig.start(f"tick {number}", "tick", 20 * MS)
        rig.turn()
    rig.run()
    plans = ["plan", *(f"rival {number}" for number in range(num_rivals))]
    for plan in plans:
        bests = rig.given[plan].get("x", [])
        if rig.is_late(plan):
            assert not bests, "a plan that has something is never dropped"
            continue
        assert bests == [1.0 + number for number in range(len(bests))]
        assert rig.done(plan).num_iterations == {"search": len(bests)}
        if len(bests) < 20:
            assert rig.done(plan).flags == ["deadline"]
    if not num_rivals:
        assert not rig.is_late("plan")
        assert rig.ended_ns["plan"] - started_ns <= max(left_ns, IMPROVE_NS)


def test_a_plan_that_is_late_before_it_begins_is_dropped(rig: Rig) -> None:
    rig.start("plan", "plan", 5 * MS)
    rig.clock.advance_ns(6 * MS)
    rig.run()
    assert rig.is_late("plan")


# ---- a picture


def test_strokes_are_shown_as_they_are_made_while_control_overtakes(rig: Rig) -> None:
    rig.start("picture", "paint", steps=8)
    shown = []
    for number in range(40):
        if number % 3:
            rig.start(f"tick {number}", "tick", 10 * MS)
        rig.turn()
        shown.append(len(rig.given["picture"].get("picture", [])))
        if rig.is_idle:
            break
    assert rig.given["picture"] == {"picture": [1.0 + number for number in range(8)], "y": [-8.0]}
    assert set(range(9)) <= {*shown, 0}, "one by one"
    assert all(isinstance(end, WalkDone) for end in rig.ends.values())


@pytest.mark.parametrize("ends_by", ["deadline", "cancel"])
def test_the_strokes_of_a_picture_that_ends_early_have_been_shown(rig: Rig, ends_by: str) -> None:
    left_ns = 5 * STROKE_NS - TICK_NS if ends_by == "deadline" else None
    rig.start("picture", "paint", left_ns, steps=50)
    rig.turn(4)
    if ends_by == "cancel":
        rig.conductor.send("worker/0", CancelRequest("picture"))
    rig.run()
    shown = rig.given["picture"]
    assert "y" not in shown
    strokes = shown.get("picture", [])
    assert strokes == [1.0 + number for number in range(len(strokes))]
    if ends_by == "deadline":
        assert rig.is_late("picture")
    else:
        assert len(strokes) == 4
