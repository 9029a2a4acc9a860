"""Random submits, parts that end in any order, failures, cancels, deaths, restarts, yields and closed sessions: every
request is answered once, and nothing is left anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import PLACEMENTS, TASKS
from scripted_workers import Part, WorkerModel
from scripted_world import World

from mstar_rt.message import Warmed, WarmUp

RARELY = st.integers(0, 9).map(lambda drawn: drawn == 7)
"""Whether a rule that ends things acts: most of the time enough should be going on at once."""


class ConductorMachine(RuleBasedStateMachine):
    @initialize(placement=st.sampled_from(sorted(PLACEMENTS)))
    def begin(self, placement: str) -> None:
        self.world = World(placement)
        self.num_names = 0
        self.restore()

    def restore(self) -> None:
        """All workers live and the model serves."""
        for rank, worker in self.world.workers.items():
            if worker is None:
                self.world.start_worker(rank)
                self.world.deliver(rank)
        if len(self.world.ready) < len(self.world.ranks):
            self.world.settle()
        if self.world.warmth.failed:
            self.world.kill(next(iter(self.world.warmth.failed)), 0)
            self.restore()
        for number in list(self.world.warmth.asked):
            self.world.handle(Warmed("m", number))
        assert self.world.warmth.serving
        assert self.world.warmth.warm == set(self.world.ranks)

    def pick_rank(self, data: st.DataObject, wanted: list[int]) -> int:
        return data.draw(st.sampled_from(wanted))

    def with_outbox(self) -> list[int]:
        return [rank for rank, worker in self.world.workers.items() if worker is not None and worker.outbox]

    def with_inbox(self) -> list[int]:
        return [rank for rank, worker in self.world.workers.items() if worker is not None and worker.inbox]

    def running(self) -> list[tuple[WorkerModel, Part]]:
        workers = self.world.workers.values()
        return [(worker, part) for worker in workers if worker is not None for part in worker.running()]

    def may_give_way(self) -> list[tuple[WorkerModel, Part]]:
        return [(worker, part) for worker, part in self.running() if worker.may_give_way(part)]

    def name(self, kind: str) -> str:
        self.num_names += 1
        return f"{kind}{self.num_names}"

    @rule(
        data=st.data(),
        task=st.sampled_from(sorted(TASKS)),
        names=st.sets(st.sampled_from(["x", "z"])),
    )
    def submit(self, data: st.DataObject, task: str, names: set[str]) -> None:
        if not self.world.warmth.serving and data.draw(st.integers(0, 3)):
            self.restore()
        session = data.draw(st.sampled_from([None, *self.sessions("s")]))
        is_accepted = self.world.warmth.serving
        request_id = self.name("r")
        self.world.submit(request_id, task, session, names)
        self.check_answers(request_id, session, is_accepted)

    @rule(data=st.data(), task=st.sampled_from(sorted(TASKS)), names=st.sets(st.sampled_from(["x", "z"])))
    def submit_warm_up(self, data: st.DataObject, task: str, names: set[str]) -> None:
        """Not only of warm-ups that were asked for: these may be over when their requests come."""
        placement = self.world.rig.placement
        replicas = [data.draw(st.sampled_from(group.ranks)) for group in placement.groups("m")]
        session = data.draw(st.sampled_from([None, *self.sessions("w")]))
        is_accepted = self.world.warmth.ranks_of(WarmUp("m", 0, replicas)) <= self.world.ready
        request_id = self.name("r")
        self.world.submit(request_id, task, session, names, warmup_on=replicas)
        self.check_answers(request_id, session, is_accepted)

    def check_answers(self, request_id: str, session: str | None, is_accepted: bool) -> None:
        answers = self.world.requests[request_id].answers
        if not is_accepted:
            assert "is not ready" in answers[0].message
        elif session in self.world.lost:
            assert "open a new session" in answers[0].message
        else:
            assert answers == []

    def sessions(self, kind: str) -> list[str]:
        """ "s": clients', "w": those that warm-ups open for themselves."""
        return sorted(session for session in self.world.sessions if session.startswith(kind))

    @precondition(lambda self: len(self.world.sessions) < 3)
    @rule(kind=st.sampled_from(["s", "s", "w"]))
    def open_session(self, kind: str) -> None:
        self.world.open_session(self.name(kind))

    @precondition(lambda self: self.world.sessions)
    @rule(data=st.data(), rarely=RARELY)
    def close_session(self, data: st.DataObject, rarely: bool) -> None:
        if not rarely:
            return
        self.world.close_session(data.draw(st.sampled_from(sorted(self.world.sessions))))

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), rarely=RARELY)
    def cancel(self, data: st.DataObject, rarely: bool) -> None:
        if not rarely:
            return
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.requests))))

    @precondition(lambda self: self.with_outbox())
    @rule(data=st.data(), count=st.integers(1, 4))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if ranks := self.with_outbox():
                self.world.deliver(self.pick_rank(data, ranks))

    @precondition(lambda self: self.with_inbox())
    @rule(data=st.data(), count=st.integers(1, 8))
    def work(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if ranks := self.with_inbox():
                self.world.work(self.pick_rank(data, ranks))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), num=st.integers(0, 5))
    def finish_part(self, data: st.DataObject, num: int) -> None:
        worker, part = data.draw(st.sampled_from(self.running()))
        worker.finish(part, num)

    @rule(rarely=RARELY)
    def settle(self, rarely: bool) -> None:
        if rarely:
            self.world.settle()

    @precondition(lambda self: self.running())
    @rule(data=st.data(), rarely=RARELY)
    def fail_part(self, data: st.DataObject, rarely: bool) -> None:
        if not rarely:
            return
        worker, part = data.draw(st.sampled_from(self.running()))
        worker.fail(part)

    @precondition(lambda self: self.may_give_way())
    @rule(data=st.data())
    def yield_part(self, data: st.DataObject) -> None:
        worker, part = data.draw(st.sampled_from(self.may_give_way()))
        worker.give_way(part)

    @precondition(lambda self: any(self.world.workers.values()))
    @rule(data=st.data(), num_heard=st.integers(0, 3), rarely=RARELY)
    def kill(self, data: st.DataObject, num_heard: int, rarely: bool) -> None:
        if not rarely:
            return
        alive = [rank for rank, worker in self.world.workers.items() if worker is not None]
        self.world.kill(self.pick_rank(data, alive), num_heard)

    @precondition(lambda self: not all(self.world.workers.values()))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.world.start_worker(
            self.pick_rank(data, [rank for rank, worker in self.world.workers.items() if worker is None])
        )

    @rule(data=st.data(), stale=st.booleans(), reason=st.sampled_from(["", "", "", "a node raises"]))
    def warmed(self, data: st.DataObject, stale: bool, reason: str) -> None:
        """Of a number that is no more, too."""
        warmth = self.world.warmth
        numbers = range(1, warmth.last_number + 1) if stale else sorted(warmth.asked)
        if numbers:
            self.world.handle(Warmed("m", data.draw(st.sampled_from(numbers)), reason))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        stuck = [name for name, book in self.world.requests.items() if not book.answers]
        assert not stuck, f"nothing is left to do, and these have no answer: {stuck}"
        for session in sorted(self.world.sessions):
            self.world.close_session(session)
        self.world.settle()
        self.world.check_nothing_left()


TestConductor = ConductorMachine.TestCase
TestConductor.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
