"""Every accepted request ends in exactly one answer; sessions keep and free their state; a lost worker ends its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from toy_model import declare

from mstar_rt.clock import ManualClock
from mstar_rt.conductor import Conductor
from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Drain,
    Finished,
    Message,
    NodeTime,
    OpenSession,
    PeerGone,
    Release,
    ReleaseScope,
    RequestFailed,
    SegmentRef,
    ServingState,
    SessionOpened,
    StartWalk,
    Submit,
    TensorRef,
    WalkDone,
    WalkFailed,
    WorkerReady,
)  # fmt: skip
from mstar_rt.placement import Placement
from mstar_rt.transport import InProcessHub


class Rig:
    def __init__(self) -> None:
        hub = InProcessHub()
        self.clock = ManualClock()
        self.server = hub.endpoint("server")
        self.worker = hub.endpoint("worker/0")
        self.conductor = Conductor(
            {"toy": declare("toy", "", {})}, Placement({"toy": 0}), hub.endpoint("conductor"), self.clock
        )

    def ready(self) -> Rig:
        self.conductor.handle(WorkerReady(0, 1, ["toy"], 1.0))
        assert self.at_server() == [ServingState("toy", True)]
        return self

    def submit(self, request_id: str = "r", task: str = "count", **fields: Any) -> None:
        inputs = fields.pop("inputs", {"x": TensorRef("float32", (1,), inline=b"0000")})
        self.conductor.handle(Submit(request_id, fields.pop("model", "toy"), task, inputs, {"steps": 2}, **fields))

    def done(self, walk: str = "count", request_id: str = "r", num_emitted: int = 1) -> None:
        self.conductor.handle(
            WalkDone(request_id, walk, num_emitted, {"add": NodeTime(2, 1.0, 4.0, 1)}, {"l": 4.0}, {"l": 2}, ["f"])
        )

    def at_server(self) -> list[Message]:
        return [envelope.message for envelope in self.server.receive(0.0)]

    def at_worker(self) -> list[Message]:
        return [envelope.message for envelope in self.worker.receive(0.0)]


def only(messages: list[Message], kind: type) -> Any:
    assert len(messages) == 1, messages
    assert isinstance(messages[0], kind), messages
    return messages[0]


def test_one_walk() -> None:
    rig = Rig().ready()
    rig.submit(deadline_ns=123, criticality="planning")
    start = only(rig.at_worker(), StartWalk)
    assert (start.walk, start.scope, start.deadline_ns, start.anytime) == ("count", "r", 123, False)
    rig.clock.advance_ns(5_000)
    rig.done()
    finished = only(rig.at_server(), Finished)
    assert (finished.num_emitted, finished.total_us, finished.flags) == (1, 5.0, ["f"])
    assert finished.node_times == {"add": NodeTime(2, 1.0, 4.0, 1)}
    assert only(rig.at_worker(), ReleaseScope).scope == "r"


def test_walks_of_a_task_run_in_order_and_add_up() -> None:
    rig = Rig().ready()
    rig.submit(task="keep_and_recall")
    assert only(rig.at_worker(), StartWalk).walk == "keep"
    rig.done("keep", num_emitted=0)
    second = only(rig.at_worker(), StartWalk)
    assert (second.walk, second.inputs, second.scope) == ("recall", {}, "r")
    assert rig.at_server() == []
    rig.done("recall", num_emitted=3)
    finished = only(rig.at_server(), Finished)
    assert finished.num_emitted == 3
    assert finished.node_times["add"].num_steps == 4
    assert finished.num_iterations == {"l": 4}


def test_failures_reach_the_server_once() -> None:
    rig = Rig().ready()
    rig.submit()
    rig.conductor.handle(WalkFailed("r", "count", "INTERNAL", "it broke"))
    assert only(rig.at_server(), RequestFailed) == RequestFailed("r", "INTERNAL", "it broke")
    rig.done()
    assert rig.at_server() == []
    assert rig.conductor.stats()["requests_running"] == 0


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"model": "tod"}, "NOT_FOUND", "no model 'tod', did you mean 'toy'?"),
        ({"task": "cuont"}, "NOT_FOUND", "no task 'cuont', did you mean 'count'?"),
        ({"session_id": "s9"}, "NOT_FOUND", "no session 's9'"),
    ],
)
def test_refusals_free_the_inputs(fields: dict[str, Any], code: str, sentence: str) -> None:
    rig = Rig().ready()
    segment = SegmentRef("server", 1, 2, b"a", 0, 4, 77)
    rig.submit(inputs={"x": TensorRef("float32", (1,), segment=segment)}, **fields)
    messages = rig.at_server()
    failed = only([m for m in messages if isinstance(m, RequestFailed)], RequestFailed)
    assert failed.code == code
    assert sentence in failed.message
    released = [m for m in messages if isinstance(m, Release)]
    assert released == ([] if "model" in fields else [Release("worker/0", [77])])
    assert rig.at_worker() == []


def test_before_the_worker_is_ready_and_after_drain_requests_are_refused() -> None:
    rig = Rig()
    rig.submit()
    assert "not ready" in only(rig.at_server(), RequestFailed).message
    rig.ready()
    rig.conductor.handle(Drain())
    rig.submit()
    assert only(rig.at_server(), RequestFailed).code == "UNAVAILABLE"


def test_cancel_stops_the_worker_and_later_news_is_ignored() -> None:
    rig = Rig().ready()
    rig.submit()
    rig.at_worker()
    rig.conductor.handle(CancelRequest("r"))
    assert rig.at_worker() == [CancelRequest("r"), ReleaseScope("r")]
    assert only(rig.at_server(), RequestFailed).code == "CANCELLED"
    rig.done()
    rig.conductor.handle(CancelRequest("r"))
    assert rig.at_server() == []


def test_a_session_shares_its_scope_and_frees_it_once() -> None:
    rig = Rig().ready()
    rig.conductor.handle(OpenSession("s", "toy"))
    assert only(rig.at_server(), SessionOpened).session_id == "s"
    rig.submit("r1", session_id="s", task="keep")
    assert only(rig.at_worker(), StartWalk).scope == "s"
    rig.done("keep", "r1")
    only(rig.at_server(), Finished)
    assert rig.at_worker() == []  # the scope outlives the request
    rig.submit("r2", session_id="s", task="recall", inputs={})
    rig.at_worker()
    rig.conductor.handle(CloseSession("s"))
    assert rig.at_worker() == [CancelRequest("r2"), ReleaseScope("s")]
    assert only(rig.at_server(), RequestFailed).request_id == "r2"
    rig.submit("r3", session_id="s", task="recall", inputs={})
    assert only(rig.at_server(), RequestFailed).code == "NOT_FOUND"


def test_a_session_of_another_model_or_of_none_is_refused() -> None:
    rig = Rig().ready()
    rig.conductor.handle(OpenSession("s", "tod"))
    assert only(rig.at_server(), RequestFailed).code == "NOT_FOUND"


def test_a_lost_worker_ends_what_ran_on_it() -> None:
    rig = Rig().ready()
    rig.conductor.handle(OpenSession("s", "toy"))
    rig.submit("r1")
    rig.submit("r2", session_id="s")
    rig.at_server()
    rig.conductor.worker_lost(0, "the worker of rank 0 ended with status -9")
    messages = rig.at_server()
    assert ServingState("toy", False, "the worker of rank 0 ended with status -9") in messages
    assert PeerGone("worker/0") in messages
    failed = {m.request_id: m.code for m in messages if isinstance(m, RequestFailed)}
    assert failed == {"r1": "UNAVAILABLE", "r2": "UNAVAILABLE"}
    rig.at_worker()
    rig.conductor.handle(WorkerReady(0, 2, ["toy"], 1.0))
    rig.at_server()
    rig.submit("r3", session_id="s")
    assert "open a new session" in only(rig.at_server(), RequestFailed).message
    rig.submit("r4")
    assert only(rig.at_worker(), StartWalk).request_id == "r4"
