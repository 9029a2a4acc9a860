"""Draining: new work is refused with a delay, running work finishes or is ended, and every caller hears which."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from toy_runtime import SIZE, Job, ToyRuntime, emit_improvement, never

from mstar_rt.client import connect
from mstar_rt.errors import Unavailable
from mstar_rt.message import CancelRequest, CloseSession, Drain, Submit
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

DRAINING = "this server is draining and takes nothing new: use another one, or try again in 5 s"
CUT = DRAINING.replace("takes nothing new", "could not finish this request in time")
ENDED = DRAINING.replace("takes nothing new", "has ended this session")
IMAGE = np.zeros((1, SIZE, SIZE, 3), np.uint8)


def frames() -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=tensor_from_array(IMAGE))


def encode_request() -> wire.EncodeRequest:
    return wire.EncodeRequest(model="toy", frames=frames())


def plan_command() -> wire.SessionPlan:
    context = wire.Context(frames=frames(), state=tensor_from_array(np.zeros(7, np.float32)))
    return wire.SessionPlan(goal=wire.Goal(frames=frames()), context=context, improvements=False)


def assert_refused(failure: Any, sentence: str = DRAINING) -> None:
    assert failure.code() == grpc.StatusCode.UNAVAILABLE
    assert failure.details() == sentence
    assert dict(failure.trailing_metadata())["retry-after-ms"] == "5000"


@pytest.fixture
def let_go(runtime: ToyRuntime) -> Callable[[], None]:
    """Requests wait until this is called."""
    waiting = asyncio.Event()

    def held(script: Any) -> Any:
        async def wait(job: Job) -> None:
            await waiting.wait()
            await script(job)

        return wait

    for task in ("encode", "plan"):
        runtime.script(task, held(runtime.scripts[task]))

    async def release() -> None:
        waiting.set()

    return lambda: runtime.run(release())


class Session:
    """The client's end of one open stream."""

    def __init__(self, world_model: Any) -> None:
        self._outgoing: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
        self.call = world_model.Session(iter(self._outgoing.get, None), timeout=30)
        self.say(1, open=wire.OpenWorldModel(model="toy"))
        assert next(self.call).WhichOneof("answer") == "opened"

    def say(self, message_id: int, **command: Any) -> None:
        self._outgoing.put(wire.SessionRequest(message_id=message_id, **command))

    def hear(self) -> tuple[int, str]:
        answer = next(self.call)
        kind = answer.WhichOneof("answer")
        if kind != "error":
            return answer.answers, kind
        detail = answer.error.detail
        assert (detail.retryable, detail.retry_after_ms) == (True, 5000)
        return answer.answers, f"{detail.code}: {detail.message}"

    def stop(self) -> None:
        self._outgoing.put(None)
        self.call.cancel()


@pytest.fixture
def session(world_model: Any) -> Iterator[Session]:
    opened = Session(world_model)
    yield opened
    opened.stop()


def test_running_calls_finish_new_ones_are_refused_and_health_says_so_at_once(
    runtime: ToyRuntime, world_model: Any, channel: grpc.Channel, let_go: Callable[[], None]
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    running = world_model.Encode.future(encode_request())
    runtime.wait_for(Submit)
    assert runtime.run(runtime.dispatcher.drain()) == 1
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for service in ("toy", ""):
        status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    runtime.wait_for(Drain)
    with pytest.raises(grpc.RpcError) as failure:
        world_model.Encode(encode_request())
    assert_refused(failure.value)
    with pytest.raises(grpc.RpcError) as failure:
        next(world_model.Session(iter([wire.SessionRequest(message_id=1, open=wire.OpenWorldModel(model="toy"))])))
    assert_refused(failure.value)
    runtime.set_serving(True)
    assert health.Check(health_pb2.HealthCheckRequest(service="toy")).status == status, "a server that drains stays so"
    let_go()
    assert running.result(10).request_id
    runtime.run(runtime.dispatcher.wait_until_answered())
    watch.cancel()


def test_a_session_finishes_its_command_and_refuses_the_next(
    runtime: ToyRuntime, session: Session, let_go: Callable[[], None]
) -> None:
    session.say(2, plan=plan_command())
    session.say(3, plan=plan_command())
    runtime.wait_for(Submit)
    runtime.run(runtime.dispatcher.drain())
    let_go()
    assert session.hear() == (2, "plan")
    assert session.hear() == (3, f"UNAVAILABLE: {DRAINING}")
    session.say(4, plan=plan_command())
    assert session.hear() == (4, f"UNAVAILABLE: {DRAINING}")
    runtime.run(runtime.dispatcher.wait_until_answered())

    async def close() -> None:
        runtime.dispatcher.close()

    runtime.run(close())
    with pytest.raises(grpc.RpcError) as failure:
        next(session.call)
    assert_refused(failure.value, ENDED)
    runtime.wait_for(CloseSession)


def test_what_is_not_done_in_time_is_ended_and_cancelled(
    runtime: ToyRuntime, world_model: Any, session: Session
) -> None:
    async def for_ever(job: Job) -> None:
        emit_improvement(job, 0, 2)
        await never(job)

    runtime.script("encode", never)
    runtime.script("plan", for_ever)
    running = world_model.Encode.future(encode_request())
    session.say(2, plan=plan_command())
    session.say(3, plan=plan_command())
    session.say(4, cancel=wire.CancelCommand(message_id=99))
    assert session.hear() == (4, "cancel_done"), "so the plan before it has been taken in"
    submits = runtime.wait_for(Submit, 2)

    async def drain() -> None:
        await runtime.dispatcher.drain()
        runtime.dispatcher.close()
        await runtime.dispatcher.wait_until_answered()

    runtime.run(drain())
    with pytest.raises(grpc.RpcError) as failure:
        running.result(10)
    assert_refused(failure.value, CUT)
    assert [session.hear() for _ in range(2)] == [(2, f"UNAVAILABLE: {CUT}"), (3, f"UNAVAILABLE: {DRAINING}")]
    with pytest.raises(grpc.RpcError) as failure:
        next(session.call)
    assert_refused(failure.value, ENDED)
    cancelled = runtime.wait_for(CancelRequest, 2)
    assert {m.request_id for m in cancelled} == {m.request_id for m in submits}


def test_a_session_of_tasks_ends_too_and_the_client_learns_when_to_try_again(runtime: ToyRuntime) -> None:
    with connect(runtime.address) as client:
        with client.task_session("toy") as tasks:
            (output,) = tasks.run("encode", {"frames": IMAGE})
            assert output.name == "latents"
            runtime.run(runtime.dispatcher.drain())
            with pytest.raises(Unavailable, match="is draining") as failure:
                tasks.run("encode", {"frames": IMAGE})
            assert failure.value.retry_after_s == 5.0
        with pytest.raises(Unavailable, match="is draining") as failure:
            client.encode("toy", IMAGE)
        assert failure.value.retry_after_s == 5.0


def test_an_idle_session_of_tasks_ends_when_the_server_closes(runtime: ToyRuntime) -> None:
    async def close() -> None:
        await runtime.dispatcher.drain()
        runtime.dispatcher.close()

    with connect(runtime.address) as client:
        tasks = client.task_session("toy")
        tasks.__enter__()
        tasks.run("encode", {"frames": IMAGE})
        runtime.run(close())
        with pytest.raises(Unavailable, match="is draining"):
            tasks.run("encode", {"frames": IMAGE})
        tasks.__exit__(None, None, None)
