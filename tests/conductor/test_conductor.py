"""Every accepted request ends in exactly one answer; what is refused leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conductor_rig import Rig

from mstar_rt.clock import ManualClock
from mstar_rt.conductor import Conductor
from mstar_rt.errors import InvalidArgument
from mstar_rt.message import (
    AskStats,
    CancelRequest,
    CloseSession,
    Drain,
    Finished,
    Message,
    NodeTime,
    OpenSession,
    Release,
    ReleaseScope,
    RequestFailed,
    SessionOpened,
    StartWalk,
    Stats,
    Submit,
    WalkFailed,
    Warmed,
    WorkerReady,
)  # fmt: skip
from mstar_rt.transport import InProcessHub


def test_one_walk_on_one_rank() -> None:
    rig = Rig("one").ready()
    rig.submit("r", "recall", deadline_ns=1_000_000_123, criticality="generation", client="ipv4:1")
    [(to, start)] = rig.said()
    assert (to, start.walk, start.scope, start.deadline_ns) == ("worker/0", "recall", "r", 1_000_000_123)
    assert (start.criticality, start.anytime, start.walk_id, start.age) == ("generation", False, 1, 1)
    assert start.client == "ipv4:1"
    assert (start.node_ranks, sorted(start.inputs), start.keep, start.fetches) == ([0], ["x"], [], [])
    rig.clock.advance_ns(5_000)
    rig.done(start, 0)
    [released, (to, finished)] = rig.said()
    assert released == ("worker/0", ReleaseScope("r"))
    expected = Finished("r", 1, {"n": NodeTime(2, 1.0, 4.0, 1)}, {"l": 4.0}, {"l": 2}, 5.0, ["f"], [0])
    assert (to, finished) == ("server", expected)


def test_walks_of_a_task_run_in_order_and_add_up() -> None:
    rig = Rig("one").ready()
    rig.submit("r", "talk")
    [(_, first)] = rig.said()
    rig.done(first, 0)
    [(_, second)] = rig.said()
    assert (first.walk, second.walk, second.walk_id, second.age) == ("prefill", "decode", 2, 1)
    assert (sorted(first.inputs), first.keep, second.inputs) == (["x"], ["x"], {})
    rig.done(second, 0, num_emitted=3)
    finished = rig.told("server", Finished)[0]
    assert (finished.num_emitted, finished.num_iterations, finished.loop_us) == (4, {"l": 4}, {"l": 8.0})
    assert finished.node_times["n"] == NodeTime(4, 2.0, 8.0, 2)
    assert finished.flags == ["f"]


def test_a_failure_reaches_the_server_once() -> None:
    rig = Rig("one").ready()
    rig.submit("r", "recall")
    [(_, start)] = rig.said()
    rig.conductor.handle(WalkFailed("r", start.walk_id, 0, "INTERNAL", "it broke"))
    assert rig.said() == [
        ("worker/0", CancelRequest("r")),
        ("worker/0", ReleaseScope("r")),
        ("server", RequestFailed("r", "INTERNAL", "it broke")),
    ]
    rig.done(start, 0)
    rig.conductor.handle(WalkFailed("r", start.walk_id, 0, "INTERNAL", "it broke"))
    assert rig.said() == []


def test_cancel_stops_the_ranks_and_later_news_is_ignored() -> None:
    rig = Rig("apart").ready()
    rig.submit("r", "apart")
    starts = dict(rig.said())
    rig.done(starts["worker/1"], 1)
    rig.conductor.handle(CancelRequest("r"))
    workers = ["worker/0", "worker/1", "worker/2"]
    assert rig.said() == [
        *((worker, CancelRequest("r")) for worker in workers),
        *((worker, ReleaseScope("r")) for worker in workers),
        ("server", RequestFailed("r", "CANCELLED", "the request was cancelled")),
    ]
    rig.done(starts["worker/0"], 0)
    rig.conductor.handle(CancelRequest("r"))
    assert rig.said() == []


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"model": "n"}, "NOT_FOUND", "no model 'n'"),
        ({"task": "recal"}, "NOT_FOUND", "no task 'recal', did you mean 'recall'?"),
        ({"session_id": "s9"}, "NOT_FOUND", "no session 's9'"),
    ],
)
def test_refusals_free_the_inputs(fields: dict[str, Any], code: str, sentence: str) -> None:
    rig = Rig("replicas").ready()
    rig.submit("r", fields.pop("task", "recall"), **fields)
    said = rig.said()
    [failed] = [message for _, message in said if isinstance(message, RequestFailed)]
    assert (failed.request_id, failed.code) == ("r", code)
    assert sentence in failed.message
    released = {message.holder for to, message in said if isinstance(message, Release) and to == "server"}
    everyone = {"worker/0", "worker/1", "worker/2"}
    readers = {"NOT_FOUND: s9": {"worker/1", "worker/2"}, "NOT_FOUND: n": set()}
    assert released == readers.get(f"{code}: {fields.get('session_id') or fields.get('model')}", everyone)
    assert not [message for _, message in said if isinstance(message, StartWalk)]


def test_what_cannot_be_sent_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("apart").ready()
    send = rig.endpoint.send

    def refuse(to: str, message: Message) -> None:
        if to == "worker/2" and isinstance(message, StartWalk):
            raise InvalidArgument("a message has 9 MB, at most 8 can be sent")
        send(to, message)

    monkeypatch.setattr(rig.endpoint, "send", refuse)
    rig.submit("r", "apart", inputs={"x": rig.block(), "z": rig.block()})
    said = rig.said()
    assert said[-1] == ("server", RequestFailed("r", "INVALID_ARGUMENT", "a message has 9 MB, at most 8 can be sent"))
    assert [to for to, message in said if isinstance(message, StartWalk)] == ["worker/0", "worker/1"]
    assert [to for to, message in said if isinstance(message, CancelRequest)] == ["worker/0", "worker/1"]


def test_before_the_workers_are_ready_and_after_drain_requests_are_refused() -> None:
    rig = Rig("one")
    rig.submit("r", "recall")
    [release, (_, failed)] = rig.said()
    assert release == ("server", Release("worker/0", [1]))
    assert failed.message == "model 'm' is not ready (no worker is ready on rank 0); try again in 1 s"
    rig.ready()
    rig.conductor.handle(OpenSession("s", "m"))
    rig.submit("r", "recall", session_id="s")
    running = rig.said(SessionOpened, StartWalk)[1][1]
    rig.conductor.handle(Drain())
    rig.submit("r2", "recall")
    rig.conductor.handle(OpenSession("s2", "m"))
    refused = rig.told("server", RequestFailed)
    assert [(message.request_id, message.code) for message in refused] == [("r2", "UNAVAILABLE"), ("s2", "UNAVAILABLE")]
    rig.done(running, 0)
    assert len(rig.said(Finished)) == 1
    rig.conductor.handle(CloseSession("s"))
    assert rig.said() == [("worker/0", ReleaseScope("s"))]


def test_stats() -> None:
    rig = Rig("one").ready()
    rig.submit("r", "recall")
    rig.conductor.handle(AskStats("server", 7))
    stats = rig.told("server", Stats)[0]
    assert (stats.source, stats.ask_id) == ("conductor", 7)
    assert stats.values["requests_running"] == stats.values["ranks_ready"] == stats.values["models_serving"] == 1.0


async def test_over_a_control_plane() -> None:
    hub = InProcessHub()
    rig = Rig("one")
    conductor = Conductor(rig.conductor._models, rig.placement, hub.endpoint("conductor"), ManualClock())
    server, worker = hub.endpoint("server"), hub.endpoint("worker/0")
    worker.send("conductor", WorkerReady(0, 1, ["m"], 1.0))
    server.send("conductor", Warmed("m", 1))
    server.send("conductor", Submit("r", "m", "recall", {}, {}))
    for envelope in await conductor._endpoint.receive_async():
        conductor.handle(envelope.message)
    assert [type(envelope.message).__name__ for envelope in worker.receive(0.0)] == ["Admitted", "StartWalk"]
    assert [type(envelope.message).__name__ for envelope in server.receive(0.0)] == ["WarmUp", "ServingState"]
