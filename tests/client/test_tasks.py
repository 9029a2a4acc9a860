"""Any task by its name: blocking and asyncio, alone and in a session, against the toy edge over real gRPC."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from toy_runtime import MAX_HORIZON, PATCHES, SIZE, WIDTH, Job, ToyRuntime, never

from mstar_rt.client import Client, connect_async
from mstar_rt.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MstarError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from mstar_rt.message import CancelRequest, CloseSession, OpenSession, Submit

FRAMES = np.full((2, SIZE, SIZE, 3), 9, np.uint8)


async def fail(job: Job) -> None:
    job.fail("RESOURCE_EXHAUSTED", "no pages are free")


def test_a_task_gives_its_outputs_then_its_timing(client: Client, runtime: ToyRuntime) -> None:
    stream = client.run("toy", "encode", {"frames": FRAMES})
    (output,) = list(stream)
    assert (output.name, output.iteration, output.walk) == ("latents", (), "walk")
    assert output.value.shape == (2, PATCHES, WIDTH)
    assert (output.value == 9).all()
    assert stream.done is not None
    assert stream.done.timing.nodes["encoder"].num_steps == 2
    assert stream.done.request_id == runtime.wait_for(Submit)[0].request_id
    runtime.wait_until_nothing_is_held()


def test_outputs_of_a_loop_carry_their_iteration_and_options_reach_the_model(
    client: Client, runtime: ToyRuntime
) -> None:
    actions = np.zeros((1, 3, 7), np.float32)
    tensors = {"frames": FRAMES, "state": [0.0] * 7, "actions": actions}
    outputs = list(client.run("toy", "rollout", tensors, rollout_horizon=3, criticality="generation"))
    assert [o.iteration for o in outputs if o.name == "pose"] == [(0,), (1,), (2,)]
    (submit,) = runtime.wait_for(Submit)
    assert submit.params["rollout_horizon"] == 3
    assert submit.criticality == "generation"


@pytest.mark.parametrize(
    ("model", "task", "tensors", "options", "kind", "sentence"),
    [
        ("tpy", "encode", {"frames": FRAMES}, {}, NotFound, "did you mean 'toy'"),
        ("toy", "encod", {"frames": FRAMES}, {}, NotFound, "did you mean 'encode'"),
        ("toy", "encode", {}, {}, InvalidArgument, "tensor 'frames' is missing"),
        ("toy", "encode", {"frame": FRAMES}, {}, InvalidArgument, "did you mean 'frames'"),
        ("toy", "encode", {"frames": FRAMES[0]}, {}, InvalidArgument, "expected"),
        ("toy", "encode", {"frames": FRAMES}, {"speed": 1}, InvalidArgument, "unknown option 'speed'"),
        ("toy", "encode", {"frames": FRAMES}, {"speed": None}, InvalidArgument, "option 'speed'"),
        ("toy", "encode", {"frames": object()}, {}, InvalidArgument, "frames is"),
    ],
)
def test_a_wrong_task_is_refused_in_one_sentence(
    client: Client, model: str, task: str, tensors: Any, options: Any, kind: type[MstarError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        list(client.run(model, task, tensors, **options))


def test_a_limit_is_refused_and_never_clamped(client: Client) -> None:
    actions = np.zeros((1, MAX_HORIZON + 1, 7), np.float32)
    with pytest.raises(InvalidArgument, match=f"the limit of this model is {MAX_HORIZON}"):
        list(client.run("toy", "rollout", {"frames": FRAMES, "state": [0.0] * 7, "actions": actions}))


def test_cancelling_takes_the_request_back(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("encode", never)
    stream = client.run("toy", "encode", {"frames": FRAMES})
    runtime.wait_for(Submit)
    stream.cancel()
    runtime.wait_for(CancelRequest)
    runtime.wait_until_nothing_is_held()


def test_the_calls_deadline_is_the_requests_too(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("encode", never)
    with pytest.raises(DeadlineExceeded):
        list(client.run("toy", "encode", {"frames": FRAMES}, timeout_s=0.2))
    (submit,) = runtime.wait_for(Submit)
    assert submit.deadline_ns is not None


def test_tasks_of_a_session_share_it_and_a_failure_leaves_it_usable(client: Client, runtime: ToyRuntime) -> None:
    with client.task_session("toy") as session:
        (first,) = session.run("encode", {"frames": FRAMES})
        runtime.script("encode", fail)
        with pytest.raises(ResourceExhausted, match="no pages are free"):
            session.run("encode", {"frames": FRAMES})
        with pytest.raises(NotFound, match="has no task"):
            session.run("encoder", {"frames": FRAMES})
        assert session.run("set_goal", {"goal_frames": FRAMES[:1]}) == []
    (opened,) = runtime.wait_for(OpenSession)
    assert {submit.session_id for submit in runtime.wait_for(Submit, 3)} == {opened.session_id}
    assert first.name == "latents"
    runtime.wait_for(CloseSession)
    runtime.wait_until_nothing_is_held()


def test_a_session_of_an_unknown_model_is_refused_at_its_first_task(client: Client) -> None:
    with client.task_session("tpy") as session, pytest.raises(NotFound, match="did you mean 'toy'"):
        session.run("encode", {"frames": FRAMES})


def test_closing_a_session_cancels_what_runs(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("encode", never)
    session = client.task_session("toy")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, "encode", {"frames": FRAMES})
        runtime.wait_for(Submit)
        session.close()
        with pytest.raises(Cancelled):
            running.result(timeout=10)
    runtime.wait_for(CancelRequest)
    runtime.wait_for(CloseSession)
    with pytest.raises(FailedPrecondition, match="is closed"):
        session.run("encode", {"frames": FRAMES})
    runtime.wait_until_nothing_is_held()


def test_ids_that_do_not_grow_end_the_session(client: Client, runtime: ToyRuntime) -> None:
    with client.task_session("toy") as session:
        session.run("encode", {"frames": FRAMES})
        session._last_id = 0
        with pytest.raises(InvalidArgument, match="ids must grow"):
            session.run("encode", {"frames": FRAMES})
    runtime.wait_for(CloseSession)


def test_the_asyncio_client_does_the_same(runtime: ToyRuntime) -> None:
    async def use() -> None:
        async with connect_async(runtime.address) as client:
            stream = client.run("toy", "encode", {"frames": FRAMES})
            (output,) = await stream.collect()
            assert (output.value == 9).all()
            assert stream.done is not None
            async with client.task_session("toy") as session:
                assert len(await session.run("encode", {"frames": FRAMES})) == 1
                with pytest.raises(NotFound):
                    await session.run("nothing")
                assert len(await session.run("encode", {"frames": FRAMES})) == 1

    asyncio.run(use())
    runtime.wait_for(CloseSession)
    runtime.wait_until_nothing_is_held()


def test_a_draining_server_refuses_tasks(client: Client) -> None:
    client.drain()
    with pytest.raises(Unavailable, match="draining"):
        list(client.run("toy", "encode", {"frames": FRAMES}))
