"""Who is told what when a walk spans ranks: inputs once, fetches from where the newest is, times merged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig

from mstar_rt.message import (
    CloseSession,
    Fetch,
    Finished,
    NodeTime,
    OpenSession,
    Release,
    ReleaseScope,
    RequestFailed,
    StartWalk,
    WalkFailed,
)  # fmt: skip

APART_STARTS = ["worker/0", "worker/1", "worker/2"]


def starts(rig: Rig) -> dict[int, Any]:
    return {int(to[-1]): message for to, message in rig.said(StartWalk)}


def run(rig: Rig, request_id: str, task: str, **fields: Any) -> list[dict[int, Any]]:
    """All walks of a request, each part done in rising order of ranks; the StartWalks of each."""
    rig.submit(request_id, task, **fields)
    walks = []
    while parts := starts(rig):
        walks.append(parts)
        for rank, start in parts.items():
            rig.done(start, rank)
    return walks


def test_every_rank_gets_its_part_and_only_the_inputs_that_it_reads() -> None:
    rig = Rig("apart").ready()
    rig.submit("r", "apart", inputs={"x": rig.block(), "z": rig.block()})
    parts = starts(rig)
    assert sorted(parts) == [0, 1, 2]
    assert all(start.node_ranks == [0, 1, 2, 0] for start in parts.values())
    assert {start.walk_id for start in parts.values()} == {1}
    assert {rank: sorted(start.inputs) for rank, start in parts.items()} == {0: ["x", "z"], 1: [], 2: []}


def test_a_walk_is_over_when_all_its_ranks_are_done() -> None:
    rig = Rig("apart").ready()
    rig.submit("r", "apart")
    parts = starts(rig)
    rig.done(parts[2], 2, num_iterations={"l": 3, "m": 1}, num_emitted=0, flags=["late", "f"])
    rig.done(parts[2], 2)  # said twice
    rig.done(parts[0], 0, num_iterations={"l": 2}, num_emitted=4)
    assert rig.said() == []
    rig.clock.advance_ns(2_000)
    rig.done(parts[1], 1, num_iterations={"l": 3}, num_emitted=0, node_times={"s": NodeTime(1, 1.0, 1.0, 0)})
    said = rig.said()
    assert [to for to, message in said if message == ReleaseScope("r")] == APART_STARTS
    times = {"n": NodeTime(4, 2.0, 8.0, 2), "s": NodeTime(1, 1.0, 1.0, 0)}
    assert said[-1] == ("server", Finished("r", 4, times, {"l": 12.0}, {"l": 3, "m": 1}, 2.0, ["f", "late"], [0, 1, 2]))


def test_an_input_goes_to_each_rank_once_and_is_kept_where_a_later_walk_reads_it() -> None:
    rig = Rig("apart").ready()
    walks = run(rig, "r", "draft_twice", inputs={"x": rig.block()})
    given = [{rank: (sorted(s.inputs), s.keep) for rank, s in parts.items()} for parts in walks]
    assert given == [{2: (["x"], ["x"])}, {0: (["x"], []), 1: ([], []), 2: ([], [])}, {2: ([], [])}]
    assert rig.said(Release) == []


def test_a_request_that_fails_early_lets_go_of_what_its_later_walks_would_have_read() -> None:
    rig = Rig("apart").ready()
    ref = rig.block()
    rig.submit("r", "draft_twice", inputs={"x": ref})
    start = starts(rig)[2]
    rig.conductor.handle(WalkFailed("r", start.walk_id, 2, "INTERNAL", "it broke"))
    assert ref.segment is not None
    assert rig.said(Release) == [("server", Release("worker/0", [ref.segment.block_id]))]


def test_a_tensor_that_another_rank_persisted_is_fetched() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    [first] = run(rig, "r1", "keep", session_id="s")
    [second] = run(rig, "r2", "recall", session_id="s")
    assert (first[1].fetches, second[2].fetches) == ([], [Fetch("kept", 1, first[1].walk_id)])
    [third] = run(rig, "r3", "recall", session_id="s", inputs={"kept": rig.block()})
    assert third[2].fetches == []
    keep, recall = run(rig, "r4", "keep_recall", session_id="s")
    assert recall[2].fetches == [Fetch("kept", 1, keep[1].walk_id)]
    [other] = run(rig, "r5", "recall")
    assert other[2].fetches == []


def test_nothing_is_fetched_from_the_rank_itself() -> None:
    rig = Rig("one").ready()
    walks = run(rig, "r", "all")
    assert [parts[0].walk for parts in walks] == ["keep", "prefill", "apart", "recall", "branches", "decode"]
    assert [parts[0].fetches for parts in walks] == [[]] * 6


def test_what_a_failed_request_left_is_never_fetched() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    [first] = run(rig, "r1", "keep", session_id="s")
    rig.submit("r2", "keep_recall", session_id="s")
    keep = starts(rig)[1]
    rig.done(keep, 1)
    recall = starts(rig)[2]
    assert recall.fetches == [Fetch("kept", 1, keep.walk_id)]
    rig.conductor.handle(WalkFailed("r2", recall.walk_id, 2, "INTERNAL", "it broke"))
    [third] = run(rig, "r3", "recall", session_id="s")
    assert third[2].fetches == [Fetch("kept", 1, first[1].walk_id)]


def test_a_cache_is_fetched_from_the_ranks_that_went_on_with_it_since() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    prefill, decode = run(rig, "r1", "talk", session_id="s")
    assert (prefill[1].fetches, decode[2].fetches) == ([], [Fetch("memory", 1, prefill[1].walk_id, True)])
    [again] = run(rig, "r2", "prefill", session_id="s")
    assert again[1].fetches == [Fetch("memory", 2, decode[2].walk_id, True)]
    [twice] = run(rig, "r3", "prefill", session_id="s")
    assert twice[1].fetches == []
    [branches] = run(rig, "r4", "branches", session_id="s")
    assert branches[1].fetches == []
    assert branches[2].fetches == [Fetch("memory", 1, twice[1].walk_id, True)]
    [both] = run(rig, "r5", "branches", session_id="s")
    assert both[1].fetches == [Fetch("memory", 2, branches[2].walk_id, True)]
    assert both[2].fetches == [Fetch("memory", 1, branches[1].walk_id, True)]


def test_a_cache_of_a_request_ends_with_it() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    run(rig, "r1", "draft_twice", session_id="s")
    walks = run(rig, "r2", "draft_twice", session_id="s")
    assert [start.fetches for parts in walks for start in parts.values()] == [[]] * 5


def test_requests_that_go_on_with_a_sessions_sequences_take_turns() -> None:
    rig = Rig("apart").ready()
    rig.conductor.handle(OpenSession("s", "m"))
    rig.submit("r1", "prefill", session_id="s")
    rig.submit("r2", "prefill", session_id="s")
    rig.submit("r3", "prefill", session_id="s")
    rig.submit("r4", "keep", session_id="s")
    assert [(message.request_id, message.walk) for _, message in rig.said(StartWalk)] == [
        ("r1", "prefill"),
        ("r4", "keep"),
    ]
    assert rig.conductor.stats()["requests_waiting"] == 2.0
    rig.conductor.handle(WalkFailed("r1", 1, 1, "INTERNAL", "it broke"))
    assert [message.request_id for _, message in rig.said(StartWalk)] == ["r2"]
    rig.conductor.handle(CloseSession("s"))
    said = rig.said()
    assert not [message for _, message in said if isinstance(message, StartWalk)]
    ended = [message.request_id for _, message in said if isinstance(message, RequestFailed)]
    assert sorted(ended) == ["r2", "r3", "r4"]
    assert said[-1] == ("worker/1", ReleaseScope("s"))
