"""Walks over several ranks that give their pages back begin again, and never wait for nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig

from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Finished,
    OpenSession,
    ResumeWalk,
    StartWalk,
    SuspendWalk,
    WalkFailed,
    WalkYields,
)  # fmt: skip

WORKERS = ["worker/0", "worker/1", "worker/2"]


def start(rig: Rig, request_id: str, task: str = "apart") -> Any:
    rig.submit(request_id, task)
    return rig.said(StartWalk)[0][1]


def suspend(rig: Rig, part: Any, rank: int) -> None:
    rig.conductor.handle(WalkYields(part.request_id, part.walk_id, rank))


def resumed(rig: Rig) -> list[ResumeWalk]:
    said = rig.said(ResumeWalk)
    firsts = [message for to, message in said if to == "worker/0"]
    assert [(to, message.request_id) for to, message in said] == [(w, m.request_id) for m in firsts for w in WORKERS]
    return firsts


def test_a_walk_that_yields_begins_again_when_a_part_ends_on_that_rank() -> None:
    rig = Rig("apart").ready()
    old, young = start(rig, "old"), start(rig, "young")
    rig.done(young, 1)
    suspend(rig, young, 2)
    assert rig.said() == [(worker, SuspendWalk("young", young.walk_id)) for worker in WORKERS]
    rig.done(young, 0)  # said before it was told
    rig.done(old, 0)
    rig.done(old, 1)
    assert rig.said() == []
    rig.done(old, 2)
    [resume] = resumed(rig)
    assert (resume.request_id, resume.walk_id) == ("young", young.walk_id + 1)
    for rank in (0, 1):
        rig.done(resume, rank, num_emitted=2)
    rig.done(young, 2)
    assert rig.said(Finished) == []
    rig.done(resume, 2, num_emitted=0)
    finished = rig.told("server", Finished)[0]
    assert (finished.request_id, finished.num_emitted, finished.num_iterations) == ("young", 4, {"l": 2})


def test_it_begins_again_at_once_where_nothing_runs() -> None:
    rig = Rig("apart").ready()
    alone = start(rig, "alone")
    suspend(rig, alone, 1)
    kinds = [type(message).__name__ for _, message in rig.said()]
    assert kinds == ["SuspendWalk"] * 3 + ["ResumeWalk"] * 3


def test_one_begins_again_at_a_time_the_oldest_first() -> None:
    rig = Rig("apart").ready()
    old, middle, young = start(rig, "old"), start(rig, "middle"), start(rig, "young")
    suspend(rig, young, 1)
    suspend(rig, middle, 1)
    rig.said()
    rig.done(old, 1)
    [first] = resumed(rig)
    assert first.request_id == "middle"
    rig.conductor.handle(CancelRequest("middle"))
    assert [resume.request_id for resume in resumed(rig)] == ["young"]


def test_two_that_wait_for_one_another_do_not_wait_for_ever() -> None:
    rig = Rig("apart").ready()
    old, young = start(rig, "old"), start(rig, "young")
    suspend(rig, young, 1)  # waits for old's part on rank 1
    rig.said()
    suspend(rig, old, 2)  # by an order of things that is past: nothing runs on rank 2 or 1 any more
    assert [resume.request_id for resume in resumed(rig)] == ["old"]
    rig.done(ResumeWalk("old", rig.conductor._running.last_walk_id), 1)
    assert [resume.request_id for resume in resumed(rig)] == ["young"]


def test_pages_of_a_closed_session_wake_a_walk() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    rig.submit("r", "prefill", session_id="s")
    rig.done(rig.said(StartWalk)[0][1], 1)
    old, young = start(rig, "old"), start(rig, "young")
    suspend(rig, young, 1)
    rig.said()
    rig.conductor.handle(CloseSession("s"))
    assert [resume.request_id for resume in resumed(rig)] == ["young"]
    assert old.walk_id < young.walk_id


def test_a_suspended_walk_can_fail_and_be_cancelled() -> None:
    rig = Rig("apart").ready()
    start(rig, "old")
    for end in (CancelRequest("young1"), WalkFailed("young2", 3, 0, "INTERNAL", "it broke")):
        young = start(rig, end.request_id)
        suspend(rig, young, 1)
        rig.said()
        rig.conductor.handle(end)
        assert [to for to, message in rig.said(CancelRequest) if message.request_id == end.request_id] == WORKERS
    assert rig.conductor.stats()["walks_suspended"] == 0.0


def test_old_and_unknown_yields_are_ignored() -> None:
    rig = Rig("apart").ready()
    start(rig, "old")
    young = start(rig, "young")
    rig.done(young, 0)
    rig.conductor.handle(WalkYields("gone", 1, 0))
    rig.conductor.handle(WalkYields("young", young.walk_id - 1, 1))
    suspend(rig, young, 0)
    assert rig.said() == []
