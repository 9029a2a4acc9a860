"""Who is ready, who hangs, which model serves, and what a death takes with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig

from mstar_rt.message import (
    Admitted,
    CancelRequest,
    Heartbeat,
    OpenSession,
    PeerGone,
    Release,
    ReleaseScope,
    RequestFailed,
    ServingState,
    StartWalk,
    WalkDone,
    Warmed,
    WarmUp,
    WorkerReady,
)  # fmt: skip

S = 1_000_000_000


def test_a_model_serves_once_all_its_ranks_are_ready_and_it_has_warmed_up() -> None:
    rig = Rig("replicas")
    rig.conductor.handle(WorkerReady(1, 11, ["m"], 1.0))
    rig.conductor.handle(WorkerReady(2, 12, ["m"], 1.0))
    assert rig.said() == [("worker/1", Admitted(0)), ("worker/2", Admitted(0))]
    rig.conductor.handle(WorkerReady(0, 10, ["m"], 1.0))
    assert rig.said() == [
        ("worker/0", Admitted(0)),
        ("server", WarmUp("m", 1, [0, 1], at_start=True)),
        ("server", WarmUp("m", 2, [1, 1], at_start=True)),
        ("server", WarmUp("m", 3, [2, 2], at_start=True)),
    ]
    rig.submit("r1", "recall")
    assert "it is warming up" in rig.told("server", RequestFailed)[0].message
    rig.submit("w", "recall", warmup_on=[2, 2])
    assert rig.said(StartWalk)[0][0] == "worker/2"
    for model, generation in (("m", 0), ("n", 1), ("m", 1), ("m", 2), ("m", 1)):
        rig.conductor.handle(Warmed(model, generation))
    assert rig.said() == [], "every replica has to prove itself first"
    rig.conductor.handle(Warmed("m", 3))
    assert rig.said() == [("server", ServingState("m", True))]
    assert [rig.conductor.is_ready(rank) for rank in (0, 1, 2, 3)] == [True, True, True, False]


def test_a_model_that_cannot_warm_up_does_not_serve() -> None:
    rig = Rig("one")
    rig.conductor.handle(WorkerReady(0, 10, ["m"], 1.0))
    rig.conductor.handle(Warmed("m", 1, "task 'recall' failed: it broke"))
    assert rig.said(ServingState) == [("server", ServingState("m", False, "task 'recall' failed: it broke"))]
    rig.submit("r", "recall")
    assert "task 'recall' failed: it broke" in rig.told("server", RequestFailed)[0].message


def test_a_death_ends_what_needed_the_rank() -> None:
    rig = Rig("apart").ready()
    ref = rig.block()
    rig.submit("r1", "apart")
    rig.submit("r2", "keep")
    rig.submit("r3", "draft_twice", inputs={"x": ref})  # on rank 2, then on all, which it has not been told
    rig.said()
    rig.conductor.worker_lost(0, "the worker of rank 0 ended with status -9", 100)
    said = rig.said()
    assert said[:3] == [
        ("server", ServingState("m", False, "the worker of rank 0 ended with status -9")),
        ("worker/1", PeerGone("worker/0")),
        ("worker/2", PeerGone("worker/0")),
    ]
    assert said[-1] == ("server", PeerGone("worker/0"))
    assert rig.endpoint.forgotten == ["worker/0"]
    failed = {message.request_id: message for _, message in said if isinstance(message, RequestFailed)}
    assert sorted(failed) == ["r1", "r3"]
    assert failed["r1"].code == "UNAVAILABLE"
    assert failed["r1"].message == "the worker of rank 0 ended with status -9; try again in 1 s"
    told = [(to, message.request_id) for to, message in said if isinstance(message, CancelRequest)]
    assert told == [("worker/1", "r1"), ("worker/2", "r1"), ("worker/2", "r3")]
    assert ref.segment is not None
    assert ("server", Release("worker/0", [ref.segment.block_id])) in said
    assert rig.conductor.stats()["requests_running"] == 1.0


def test_a_worker_that_comes_back_is_warmed_up_again() -> None:
    rig = Rig("apart").ready()
    rig.submit("r", "keep")
    start = rig.said(StartWalk)[0][1]
    rig.conductor.worker_lost(1, "gone", 101)
    rig.said()
    rig.conductor.handle(WorkerReady(1, 101, ["m"], 1.0))  # said before it died
    rig.conductor.handle(WalkDone("r", start.walk_id, 1, 0, {}, {}, {}))
    rig.conductor.handle(Warmed("m", 1))
    assert rig.said() == []
    rig.submit("r2", "keep")
    assert "no worker is ready on rank 1" in rig.told("server", RequestFailed)[0].message
    rig.conductor.handle(WorkerReady(1, 102, ["m"], 1.0))
    assert rig.said() == [("worker/1", Admitted(1)), ("server", WarmUp("m", 2, []))]
    rig.conductor.handle(WorkerReady(1, 102, ["m"], 1.0))
    assert rig.said() == []
    rig.conductor.worker_lost(1, "gone again", 102)
    rig.conductor.handle(WorkerReady(1, 101, ["m"], 1.0))  # the kernel gave it the number of its dead grandfather
    assert rig.said(Admitted) == [("worker/1", Admitted(1))]


def test_a_session_is_lost_with_the_rank_that_holds_something_of_it() -> None:
    rig = Rig("apart").ready()
    for session in ("kept", "idle", "used"):
        rig.conductor.handle(OpenSession(session, "m"))
    rig.submit("r1", "keep", session_id="kept")
    rig.done(rig.said(StartWalk)[0][1], 1)
    rig.submit("r2", "recall", session_id="kept")  # runs on rank 2 while rank 1 dies
    rig.submit("r3", "recall", session_id="used")
    rig.said()
    rig.conductor.worker_lost(1, "gone", 101)
    said = rig.said()
    failed = {message.request_id: message for _, message in said if isinstance(message, RequestFailed)}
    assert list(failed) == ["r2"]
    assert "open a new session" in failed["r2"].message
    assert ("worker/2", ReleaseScope("kept")) in said
    assert "worker/1" not in [to for to, _ in said]
    rig.conductor.handle(WorkerReady(1, 103, ["m"], 1.0))
    rig.conductor.handle(Warmed("m", 2))
    rig.said()
    for session in ("kept", "idle", "used"):
        rig.submit(f"again_{session}", "keep", session_id=session)
    assert [message.request_id for message in rig.told("server", RequestFailed)] == ["again_kept"]


def heartbeat(rig: Rig, pid: int = 100, step_ns: int = 0) -> None:
    rig.conductor.handle(Heartbeat(0, pid, step_ns, "decode"))


def look(rig: Rig, after_s: float) -> list[tuple[int, str]]:
    rig.clock.advance_ns(int(after_s * S))
    return rig.conductor.overdue(rig.clock.now_ns())


def test_a_silent_worker_is_overdue() -> None:
    rig = Rig("one")
    assert look(rig, 100.0) == []  # it loads
    rig.ready()
    heartbeat(rig)
    assert [look(rig, 2.0) for _ in range(5)] == [[]] * 5
    assert look(rig, 0.5) == [(0, "it was silent for 10.5 s, over 10 s")]
    heartbeat(rig)
    assert look(rig, 1.0) == []
    rig.conductor.worker_lost(0, "killed", 100)
    heartbeat(rig)  # said before it died
    assert [look(rig, 2.0) for _ in range(10)] == [[]] * 10


def test_a_worker_that_never_sends_a_heartbeat_is_overdue() -> None:
    rig = Rig("one").ready()
    assert [look(rig, 2.0) for _ in range(5)] == [[]] * 5
    assert look(rig, 0.5) == [(0, "it was silent for 10.5 s, over 10 s")]


def test_our_own_absence_is_not_its_silence() -> None:
    rig = Rig("one").ready()
    heartbeat(rig)
    assert look(rig, 1.0) == []
    assert look(rig, 60.0) == []  # this process was stopped
    assert look(rig, 6.9) == []
    for _ in range(4):
        found = look(rig, 2.0)
    assert found == [(0, "it was silent for 13.0 s, over 10 s")]


@pytest.mark.parametrize(("step_s", "is_overdue"), [(0.0, False), (59.0, False), (61.0, True)])
def test_a_step_that_takes_too_long_is_overdue(step_s: float, is_overdue: bool) -> None:
    rig = Rig("one").ready()
    rig.clock.advance_ns(100 * S)
    heartbeat(rig, step_ns=rig.clock.now_ns() - int(step_s * S) if step_s else 0)
    found = [(0, "a step of node 'decode' took over 60 s")] if is_overdue else []
    assert look(rig, 1.0) == found
