"""Any task by its name: blocking and asyncio, alone and in a session, against the toy edge over real gRPC."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
        ("toy", "encode", [FRAMES], {}, InvalidArgument, "expected a mapping from names to arrays"),
        ("toy", "encode", {1: FRAMES}, {}, InvalidArgument, "the name of a tensor is 1, expected text"),
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


async def echo_first_pixel(job: Job) -> None:
    job.emit("latents", np.full((1, PATCHES, WIDTH), job.inputs["frames"].flat[0], np.float32))
    job.finish()


def image(value: int) -> dict[str, np.ndarray]:
    return {"frames": np.full((1, SIZE, SIZE, 3), value, np.uint8)}


def test_threads_take_turns_in_one_session_and_each_gets_its_own_answer(client: Client, runtime: ToyRuntime) -> None:
    runtime.script("encode", echo_first_pixel)
    with client.task_session("toy") as session, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda value: session.run("encode", image(value)), range(40)))
    assert [int(outputs[0].value[0, 0, 0]) for outputs in answers] == list(range(40))


def test_an_interrupted_task_closes_its_session(
    client: Client, runtime: ToyRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(message_id: int) -> Any:
        raise KeyboardInterrupt

    with client.task_session("toy") as session:
        monkeypatch.setattr(session, "_outputs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.run("encode", image(1))
        with pytest.raises(FailedPrecondition, match="is closed"):
            session.run("encode", image(2))
    runtime.wait_until_nothing_is_held()


async def run_at_once_and_take_one_back(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client, client.task_session("toy") as session:
        answers = await asyncio.gather(*(session.run("encode", image(value)) for value in range(20)))
        assert [int(outputs[0].value[0, 0, 0]) for outputs in answers] == list(range(20))
        runtime.script("encode", never)
        running = asyncio.ensure_future(session.run("encode", image(1)))
        waiting = asyncio.ensure_future(session.run("encode", image(2)))
        await asyncio.to_thread(runtime.wait_for, Submit, 21)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting  # asyncio does not say which of two tasks that are cancelled together hears of it first
        running.cancel()
        await asyncio.to_thread(runtime.wait_for, CancelRequest)
        runtime.script("encode", echo_first_pixel)
        (output,) = await session.run("encode", image(3))
        assert int(output.value[0, 0, 0]) == 3


def test_a_task_that_is_taken_back_leaves_the_session_usable(runtime: ToyRuntime) -> None:
    runtime.script("encode", echo_first_pixel)
    asyncio.run(run_at_once_and_take_one_back(runtime))
    assert len(runtime.wait_for(Submit, 22)) == 22, "what was taken back before it started was never submitted"
    runtime.wait_until_nothing_is_held()


def test_an_error_that_quotes_a_long_value_arrives(client: Client) -> None:
    with pytest.raises(NotFound, match="no model 'mmm"):
        list(client.run("m" * 20_000, "encode", {}))
    with pytest.raises(InvalidArgument, match="unknown option"):
        list(client.run("toy", "encode", {"frames": FRAMES}, **{"o" * 20_000: 1}))
