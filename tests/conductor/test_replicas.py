"""Requests go to the least loaded replica; a session stays where its state is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig

from mstar_rt.message import CloseSession, OpenSession, Release, StartWalk, WorkerReady


def rank_of(rig: Rig, request_id: str, task: str = "keep", **fields: object) -> int:
    """The rank where the last node of the first walk runs."""
    rig.submit(request_id, task, **fields)
    return rig.said(StartWalk)[0][1].node_ranks[-1]


def test_the_rank_with_the_fewest_requests_is_taken() -> None:
    rig = Rig("replicas").ready()
    assert [rank_of(rig, f"r{i}") for i in range(3)] == [1, 2, 1]
    rig.done(StartWalkOf("r0", 1), 1)
    rig.done(StartWalkOf("r2", 3), 1)
    assert [rank_of(rig, f"s{i}") for i in range(2)] == [1, 1]


class StartWalkOf:
    def __init__(self, request_id: str, walk_id: int) -> None:
        self.request_id = request_id
        self.walk_id = walk_id


def test_groups_choose_apart_and_one_request_stays_with_its_choice() -> None:
    rig = Rig("replicas").ready()
    rig.submit("r", "apart", warmup_on=[1, 2])
    assert {tuple(start.node_ranks) for _, start in rig.said(StartWalk)} == {(0, 1, 1, 0)}
    rig.submit("r2", "apart", warmup_on=[2, 2])
    assert {tuple(start.node_ranks) for _, start in rig.said(StartWalk)} == {(0, 2, 2, 0)}
    rig.submit("r3", "talk", warmup_on=[1, 2])
    [(to, first)] = rig.said(StartWalk)
    rig.done(first, 2)
    assert (to, rig.said(StartWalk)[0][0]) == ("worker/2", "worker/2")


def test_the_others_let_go_of_the_inputs() -> None:
    rig = Rig("replicas").ready()
    ref = rig.block()
    rig.submit("r", "keep", inputs={"x": ref}, warmup_on=[0, 1])
    assert ref.segment is not None
    assert rig.said(Release) == [("server", Release("worker/2", [ref.segment.block_id]))]


def test_a_session_stays_with_its_first_choice() -> None:
    rig = Rig("replicas").ready()
    for session in ("a", "b", "c"):
        rig.conductor.handle(OpenSession(session, "m"))
    assert rank_of(rig, "a1", session_id="a", warmup_on=[1, 2]) == 2
    assert rank_of(rig, "a2", session_id="a", warmup_on=[0, 1]) == 2
    assert rank_of(rig, "b1", session_id="b") == 1
    rig.conductor.handle(CloseSession("b"))
    assert rank_of(rig, "c1", session_id="c") == 1
    assert [rank_of(rig, f"c{i}", session_id="c") for i in range(2, 9)] == [1] * 7


def test_idle_sessions_are_spread() -> None:
    rig = Rig("replicas").ready()
    ranks = []
    for index in range(4):
        rig.conductor.handle(OpenSession(f"s{index}", "m"))
        rig.submit(f"r{index}", "recall", session_id=f"s{index}")
        [(_, start)] = rig.said(StartWalk)
        rig.done(start, start.node_ranks[0])
        ranks.append(start.node_ranks[0])
    assert ranks == [1, 2, 1, 2]


def test_a_session_without_state_chooses_again_when_its_rank_dies() -> None:
    rig = Rig("replicas").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    assert rank_of(rig, "r1", "recall", session_id="s") == 1
    rig.conductor.worker_lost(1, "gone", 101)
    rig.said()
    assert rank_of(rig, "r2", "recall", session_id="s") == 2
    rig.conductor.handle(WorkerReady(1, 102, ["m"], 1.0))
    rig.warm_up()
    assert rank_of(rig, "r3", "recall", session_id="s") == 2, "it has chosen again"
