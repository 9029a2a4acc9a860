"""A client that stops reading its stream over gRPC: its own request ends, bounded, and nobody else's."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from toy_runtime import PATCHES, SIZE, WIDTH, Job, ToyRuntime, emit_improvement, toy_runtime

from mstar_rt.message import CancelRequest
from mstar_rt.protos import tensor_pb2, world_model_pb2_grpc
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

MAX_UNREAD_BYTES = 1 << 20
LATENT = np.zeros((1, PATCHES, WIDTH), np.float32)


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with toy_runtime(max_unread_bytes=MAX_UNREAD_BYTES) as running:
        running.script("rollout", flood)
        yield running


@pytest.fixture
def second_channel(runtime: ToyRuntime) -> Iterator[Any]:
    """Of another client: streams of one connection share its window of bytes."""
    with grpc.insecure_channel(runtime.address, [("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield world_model_pb2_grpc.WorldModelStub(opened)


async def flood(job: Job) -> None:
    """Imagines for ever, as fast as the server takes it."""
    h = 0
    while True:
        job.emit("pose", np.zeros((1, 7), np.float32), (h,))
        job.emit("latent", LATENT, (h,))
        h += 1
        await asyncio.sleep(0)


def frames() -> tensor_pb2.Frames:
    return tensor_pb2.Frames(tensor=tensor_from_array(np.zeros((1, SIZE, SIZE, 3), np.uint8)))


def rollout_request() -> wire.RolloutRequest:
    context = wire.Context(frames=frames(), state=tensor_from_array(np.zeros(7, np.float32)))
    actions = tensor_from_array(np.zeros((2, 7), np.float32))
    return wire.RolloutRequest(model="toy", context=context, rollout=wire.Rollout(actions=actions))


def test_a_client_that_stops_reading_fails_its_own_request(
    runtime: ToyRuntime, world_model: Any, second_channel: Any
) -> None:
    slow = world_model.Rollout(rollout_request(), timeout=60)
    assert next(slow).step.step == 0
    (cancelled,) = runtime.wait_for(CancelRequest)
    assert second_channel.Encode(wire.EncodeRequest(model="toy", frames=frames()), timeout=10).request_id
    with pytest.raises(grpc.RpcError) as failure:
        list(slow)
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the client does not read fast enough: 4." in failure.value.details()
    assert "server.max_unread_mb is 1: read faster, or raise it" in failure.value.details()
    assert dict(failure.value.trailing_metadata())["mstar-request-id"] == cancelled.request_id


def test_a_client_that_reads_gets_any_amount(runtime: ToyRuntime, world_model: Any) -> None:
    """Ten times the bound, at the reader's own pace."""
    num_steps = 10 * MAX_UNREAD_BYTES // LATENT.nbytes

    async def as_read(job: Job) -> None:
        for h in range(num_steps):
            job.emit("pose", np.zeros((1, 7), np.float32), (h,))
            job.emit("latent", LATENT, (h,))
            (stream,) = runtime.dispatcher._requests.running.values()
            while stream._num_received < 2 * (h + 1) or stream.num_unread_bytes > MAX_UNREAD_BYTES // 2:
                await asyncio.sleep(0)
        job.finish()

    runtime.script("rollout", as_read)
    *steps, last = world_model.Rollout(rollout_request(), timeout=60)
    assert [answer.step.step for answer in steps] == list(range(num_steps))
    assert last.done.num_steps == num_steps


def test_a_session_whose_client_stops_reading_goes_on(runtime: ToyRuntime, world_model: Any) -> None:
    plan_script = runtime.scripts["plan"]

    async def improve_for_ever(job: Job) -> None:
        for i in range(10**9):
            job.emit("padding", np.zeros(1 << 14, np.float32), (i,))
            emit_improvement(job, i, 2)
            await asyncio.sleep(0)

    runtime.script("plan", improve_for_ever)
    outgoing: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
    call = world_model.Session(iter(outgoing.get, None), timeout=60)
    context = wire.Context(frames=frames(), state=tensor_from_array(np.zeros(7, np.float32)))
    plan = wire.SessionPlan(goal=wire.Goal(frames=frames()), context=context)
    outgoing.put(wire.SessionRequest(message_id=1, open=wire.OpenWorldModel(model="toy")))
    outgoing.put(wire.SessionRequest(message_id=2, plan=plan))
    assert next(call).WhichOneof("answer") == "opened"
    runtime.wait_for(CancelRequest)
    runtime.script("plan", plan_script)
    error = next(answer for answer in call if answer.WhichOneof("answer") == "error")
    assert (error.answers, error.error.detail.code) == (2, "RESOURCE_EXHAUSTED")
    outgoing.put(wire.SessionRequest(message_id=3, plan=plan))
    outgoing.put(wire.SessionRequest(message_id=4, close=wire.CloseWorldModel()))
    assert [answer.WhichOneof("answer") for answer in call][-2:] == ["plan", "closed"]
    outgoing.put(None)
