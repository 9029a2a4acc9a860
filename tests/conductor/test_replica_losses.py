"""A model with replicas serves while every node has a warm rank; what comes back is chosen only once it is warm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig, placed

from mstar_rt.config import PlacementRule
from mstar_rt.message import (
    Admitted,
    CancelRequest,
    OpenSession,
    Release,
    RequestFailed,
    ServingState,
    StartWalk,
    Warmed,
    WarmUp,
    WorkerReady,
)  # fmt: skip
from mstar_rt.placement import Placement

PAIR = (PlacementRule("m", ("keep", "recall", "prefill", "decode", "draft"), (1, 2)),)
"""Rank 0 has what no other has, ranks 1 and 2 are replicas of the rest."""


def pair() -> Placement:
    return placed(PAIR, range(3))


def lose(rig: Rig, rank: int, pid: int | None = None) -> None:
    rig.conductor.worker_lost(rank, f"the worker of rank {rank} ended", 100 + rank if pid is None else pid)


def come(rig: Rig, rank: int, pid: int) -> None:
    rig.conductor.handle(WorkerReady(rank, pid, ["m"], 1.0))


def ranks_of(rig: Rig, count: int, first: int = 0) -> list[int]:
    """Where new requests run."""
    ranks = []
    for index in range(first, first + count):
        rig.submit(f"q{index}", "recall")
        said = rig.said(StartWalk)
        assert len(said) == 1, "it was refused"
        ranks.append(said[0][1].node_ranks[0])
    return ranks


def refusal(rig: Rig) -> str:
    rig.submit("refused", "recall")
    [failed] = rig.told("server", RequestFailed)
    assert failed.code == "UNAVAILABLE"
    return str(failed.message)


def test_the_others_take_over_and_nothing_is_said_of_health() -> None:
    rig = Rig(pair()).ready()
    rig.submit("on1", "recall")
    rig.submit("on2", "recall")
    rig.said()
    lose(rig, 1)
    said = rig.said(ServingState, RequestFailed, CancelRequest, WarmUp)
    assert [(to, message.request_id) for to, message in said] == [("server", "on1")]
    assert said[0][1].message == "the worker of rank 1 ended; try again in 1 s"
    assert ranks_of(rig, 3) == [2, 2, 2]
    rig.done(StartWalkOf("on2", 2), 2)
    assert rig.said()[-1][1].request_id == "on2"
    assert rig.conductor.stats()["models_serving"] == 1.0
    assert rig.conductor.stats()["ranks_serving/m"] == 2.0


class StartWalkOf:
    def __init__(self, request_id: str, walk_id: int) -> None:
        self.request_id = request_id
        self.walk_id = walk_id


def test_the_dead_rank_lets_go_of_new_inputs() -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    rig.said()
    ref = rig.block()
    rig.submit("r", "recall", inputs={"x": ref})
    assert ref.segment is not None
    assert rig.said(Release) == [("server", Release("worker/1", [ref.segment.block_id]))]


def test_what_comes_back_is_chosen_only_after_its_warm_up() -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    rig.said()
    come(rig, 1, 111)
    assert rig.said() == [("worker/1", Admitted(0)), ("server", WarmUp("m", 3, [1]))]
    assert ranks_of(rig, 2) == [2, 2]
    rig.submit("w", "recall", warmup_on=[1])
    assert rig.said(StartWalk)[0][0] == "worker/1"
    rig.conductor.handle(Warmed("m", 3))
    assert rig.said(ServingState) == [], "it never said otherwise"
    assert ranks_of(rig, 3, first=2) == [1, 1, 2]


@pytest.mark.parametrize("stale", [1, 2, 3])
def test_only_the_warm_up_of_its_present_life_counts(stale: int) -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    come(rig, 1, 111)  # warm-up 3
    lose(rig, 1, 111)
    come(rig, 1, 112)
    assert rig.told("server", WarmUp)[-1] == WarmUp("m", 4, [1])
    rig.conductor.handle(Warmed("m", stale))
    assert ranks_of(rig, 2) == [2, 2]
    rig.conductor.handle(Warmed("m", 4))
    assert ranks_of(rig, 1, first=2) == [1]


def test_a_warm_up_that_fails_leaves_its_rank_out(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    come(rig, 1, 111)
    rig.said()
    rig.conductor.handle(Warmed("m", 3, "the device is broken"))
    assert rig.said() == []
    assert caplog.messages == ["model m does not use rank 1: the device is broken"]
    assert ranks_of(rig, 2) == [2, 2]
    lose(rig, 2)  # now its failure is why the model does not serve
    assert rig.told("server", ServingState) == [ServingState("m", False, "the worker of rank 2 ended")]
    assert "the device is broken" in refusal(rig)
    come(rig, 2, 112)  # what was left out has another try
    assert rig.told("server", WarmUp) == [WarmUp("m", 4, [1]), WarmUp("m", 5, [2])]
    rig.conductor.handle(Warmed("m", 4, "it is broken still"))
    assert rig.said(ServingState) == [("server", ServingState("m", False, "it is broken still"))]
    rig.conductor.handle(Warmed("m", 5))
    assert rig.said(ServingState) == [("server", ServingState("m", True))]
    assert ranks_of(rig, 2, first=2) == [2, 2]


def test_without_the_last_replica_nothing_serves_until_one_is_back() -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    lose(rig, 2)
    assert rig.told("server", ServingState) == [ServingState("m", False, "the worker of rank 2 ended")]
    assert "no worker is ready on ranks 1, 2" in refusal(rig)
    come(rig, 2, 112)
    assert rig.told("server", WarmUp) == [WarmUp("m", 3, [2])]
    assert "it is warming up" in refusal(rig)
    rig.conductor.handle(Warmed("m", 3))
    assert rig.told("server", ServingState) == [ServingState("m", True)]
    assert ranks_of(rig, 2) == [2, 2]
    come(rig, 1, 111)
    assert [asked.replicas for asked in rig.warm_up()] == [[1]]
    assert ranks_of(rig, 1, first=2) == [1]


def test_without_the_rank_that_all_need_nothing_serves() -> None:
    rig = Rig(pair()).ready()
    lose(rig, 0)
    assert rig.told("server", ServingState) == [ServingState("m", False, "the worker of rank 0 ended")]
    lose(rig, 1)
    assert rig.told("server", ServingState) == [], "that is not why"
    assert "no worker is ready on rank 0" in refusal(rig)
    come(rig, 1, 111)
    assert rig.said(WarmUp) == [], "no walk could run"
    come(rig, 0, 110)
    assert rig.told("server", WarmUp) == [WarmUp("m", 3, [2]), WarmUp("m", 4, [1])]
    rig.conductor.handle(Warmed("m", 3))
    assert rig.told("server", ServingState) == [ServingState("m", True)]
    assert ranks_of(rig, 2) == [2, 2]
    rig.conductor.handle(Warmed("m", 4))
    assert ranks_of(rig, 1, first=2) == [1]


def test_a_warm_up_whose_other_rank_dies_is_asked_for_again() -> None:
    rules = (PlacementRule("m", ("keep", "recall"), (1, 2)), PlacementRule("m", ("side",), (3, 4)))
    rig = Rig(placed(rules, range(5)), num_ranks=5).ready()
    lose(rig, 1)
    come(rig, 1, 111)
    [asked] = rig.told("server", WarmUp)
    other = next(rank for rank in asked.replicas if rank > 2)
    lose(rig, other)
    [again] = rig.told("server", WarmUp)
    assert set(again.replicas) == {1, 7 - other}
    rig.conductor.handle(Warmed("m", asked.generation))
    assert ranks_of(rig, 2) == [2, 2]
    rig.conductor.handle(Warmed("m", again.generation))
    assert ranks_of(rig, 1, first=2) == [1]


def test_warm_ups_cover_all_ranks_with_as_few_as_there_are_replicas() -> None:
    rules = (PlacementRule("m", ("keep", "recall"), (1, 2)), PlacementRule("m", ("side",), (3, 4)))
    rig = Rig(placed(rules, range(5)), num_ranks=5)
    for rank in range(5):
        come(rig, rank, 100 + rank)
    asked = rig.told("server", WarmUp)
    assert [sorted(warm_up.replicas) for warm_up in asked] == [[1, 3], [2, 4]]
    assert all(warm_up.at_start for warm_up in asked)


def test_sessions_on_the_rank_are_lost_and_others_go_on() -> None:
    rig = Rig(pair()).ready()
    for session in ("a", "b"):
        rig.conductor.handle(OpenSession(session, "m"))
        rig.submit(f"keep_{session}", "keep", session_id=session)
        [(_, start)] = rig.said(StartWalk)
        rig.done(start, start.node_ranks[0])
    rig.said()
    lose(rig, 1)
    assert rig.said(ServingState) == []
    for session in ("a", "b"):
        rig.submit(f"recall_{session}", "recall", session_id=session)
    said = rig.said(RequestFailed, StartWalk)
    assert [message.request_id for _, message in said] == ["recall_a", "recall_b"]
    assert "open a new session" in said[0][1].message
    assert said[1][0] == "worker/2"
    rig.conductor.handle(OpenSession("c", "m"))
    rig.submit("keep_c", "keep", session_id="c")
    assert rig.said(StartWalk)[0][0] == "worker/2"


def test_a_warm_up_for_a_rank_that_died_again_is_refused() -> None:
    rig = Rig(pair()).ready()
    lose(rig, 1)
    rig.said()
    rig.submit("w", "recall", warmup_on=[1])
    [failed] = rig.told("server", RequestFailed)
    assert failed.message == "model 'm' is not ready (no worker is ready on rank 1); try again in 1 s"
