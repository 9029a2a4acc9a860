"""Sessions of both clients, and the asyncio client, against the real server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from toy_runtime import SIZE, Job, ToyRuntime, emit_improvement, never

from mstar_rt.client import (
    AsyncClient,
    Client,
    Plan,
    PlanImprovement,
    RolloutDone,
    RolloutStep,
    connect_async,
)
from mstar_rt.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from mstar_rt.message import CancelRequest, CloseSession, Submit

FRAME = np.full((SIZE, SIZE, 3), 5, np.uint8)
STATE = np.zeros(7)


def test_a_session_keeps_goal_and_observation(client: Client, runtime: ToyRuntime) -> None:
    with client.session("toy", num_samples=16, warm_start=True) as session:
        assert session.session_id.startswith("s-")
        assert session.set_goal(FRAME).total_us > 0
        observation = session.observe(FRAME, STATE)
        plan = session.plan(num_iterations=2)
        assert (plan.num_iterations, plan.observation_id) == (2, observation)
        assert len(plan.improvements) == 2
        *steps, done = session.rollout(np.ones((2, 7)))
        assert [type(step) for step in steps] == [RolloutStep, RolloutStep]
        assert isinstance(done, RolloutDone)
    _, plan_submit, _ = runtime.wait_for(Submit, 3)
    assert plan_submit.params["warm_start"] is True
    assert plan_submit.params["num_samples"] == 16
    runtime.wait_for(CloseSession)


def test_an_error_of_a_command_leaves_the_session_usable(client: Client) -> None:
    with client.session("toy") as session:
        with pytest.raises(FailedPrecondition, match="no observation"):
            session.plan()
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            session.observe(FRAME[:10], STATE)
        session.observe(FRAME, STATE)
        assert session.plan(goal_frames=FRAME).num_iterations == 3


def test_a_refusal_of_an_observation_that_nobody_waited_for_comes_with_the_next_call(client: Client) -> None:
    with client.session("toy") as session:
        session.set_goal(FRAME)
        session.observe(FRAME[:10], STATE, wait=False)
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            session.observe(FRAME, STATE)
        assert session.plan().num_iterations == 3


def test_a_dropped_observation_is_an_event(client: Client) -> None:
    with client.session("toy") as session:
        first = session.observe(FRAME, STATE, wait=False)
        second = session.observe(FRAME, STATE)
        (event,) = session.events
        assert (event.kind, event.message_id, event.replaced_by) == ("observation_dropped", first, second)


def test_leaving_a_plan_early_takes_it_back(client: Client, runtime: ToyRuntime) -> None:
    async def endless(job: Job) -> None:
        emit_improvement(job, 0, 2)
        await asyncio.Event().wait()

    with client.session("toy") as session:
        session.set_goal(FRAME)
        session.observe(FRAME, STATE)
        plan_script = runtime.scripts["plan"]
        runtime.script("plan", endless)
        for improvement in session.plan_stream():
            assert isinstance(improvement, PlanImprovement)
            break
        runtime.wait_for(CancelRequest)
        runtime.script("plan", plan_script)
        assert session.plan().num_iterations == 3


def test_a_session_that_cannot_open(client: Client) -> None:
    with pytest.raises(NotFound, match="no model 'toi' is served"):
        client.session("toi")
    with pytest.raises(InvalidArgument, match="'num_samples' is 1"):
        client.session("toy", num_samples=1)


def test_leaving_by_an_exception_frees_the_session(client: Client, runtime: ToyRuntime) -> None:
    with pytest.raises(ZeroDivisionError), client.session("toy"):
        raise ZeroDivisionError
    runtime.wait_for(CloseSession)


def test_a_server_that_goes_away_ends_the_session(client: Client, runtime: ToyRuntime) -> None:
    session = client.session("toy")
    runtime.run(runtime.edge.stop())
    for _ in range(2):
        with pytest.raises(Unavailable):
            session.observe(FRAME, STATE)


# ---- asyncio


@pytest.fixture
async def async_client(runtime: ToyRuntime) -> AsyncIterator[AsyncClient]:
    async with connect_async(runtime.address) as connected:
        yield connected


async def test_the_asyncio_client_does_the_same(async_client: AsyncClient) -> None:
    await async_client.wait_until_serving(timeout_s=10)
    assert (await async_client.encode("toy", FRAME)).latents.shape[0] == 1
    plan = await async_client.plan("toy", FRAME, FRAME, STATE, num_iterations=2)
    assert (plan.num_iterations, len(plan.improvements)) == (2, 2)
    answers = [answer async for answer in async_client.rollout("toy", FRAME, np.ones((2, 7)), STATE)]
    assert [type(answer) for answer in answers] == [RolloutStep, RolloutStep, RolloutDone]
    assert [model.name for model in await async_client.models()] == ["toy"]
    assert "plan" in (await async_client.describe("toy")).tasks
    assert (await async_client.server_info()).version
    assert "conductor" in (await async_client.stats()).processes
    with pytest.raises(InvalidArgument, match="did you mean 'num_samples'"):
        await async_client.plan("toy", FRAME, FRAME, STATE, num_sample=3)
    assert await async_client.drain() == 0


async def test_cancelling_a_task_cancels_its_call(async_client: AsyncClient, runtime: ToyRuntime) -> None:
    runtime.script("plan", never)
    planning = asyncio.create_task(async_client.plan("toy", FRAME, FRAME, STATE))
    await asyncio.to_thread(runtime.wait_for, Submit)
    planning.cancel()
    await asyncio.to_thread(runtime.wait_for, CancelRequest)


async def test_waiting_for_a_server_that_is_not_there() -> None:
    async with connect_async("127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"the server at 127\.0\.0\.1:1 is not serving after 0\.05 s"):
            await client.wait_until_serving(timeout_s=0.05)


async def test_observations_come_in_while_a_plan_runs(async_client: AsyncClient, runtime: ToyRuntime) -> None:
    async with async_client.session("toy") as session:
        await session.set_goal(FRAME)
        first = await session.observe(FRAME, STATE)
        plan_script = runtime.scripts["plan"]
        runtime.script("plan", never)
        planning = asyncio.create_task(session.plan())
        await asyncio.to_thread(runtime.wait_for, Submit, 2)
        dropped = await session.observe(FRAME, STATE)
        newest = await session.observe(FRAME, STATE)
        assert first < dropped < newest
        assert [(event.message_id, event.replaced_by) for event in session.events] == [(dropped, newest)]
        runtime.script("plan", plan_script)
        planning.cancel()
        await asyncio.to_thread(runtime.wait_for, CancelRequest)
        plans = await asyncio.gather(session.plan(), session.plan(num_iterations=1))
        assert [plan.observation_id for plan in plans] == [newest, newest]
        assert [plan.num_iterations for plan in plans] == [3, 1]
    await asyncio.to_thread(runtime.wait_for, CloseSession)


async def test_asyncio_session_errors(async_client: AsyncClient, runtime: ToyRuntime) -> None:
    with pytest.raises(NotFound, match="no model 'toi' is served"):
        async with async_client.session("toi"):
            pass
    async with async_client.session("toy") as session:
        with pytest.raises(FailedPrecondition, match="no observation"):
            await session.plan()
        await session.observe(FRAME, STATE)
        assert isinstance(await session.plan(goal_frames=FRAME), Plan)
        answers = [answer async for answer in session.rollout(np.ones((1, 7)))]
        assert isinstance(answers[-1], RolloutDone)
    with pytest.raises(ZeroDivisionError):
        async with async_client.session("toy"):
            raise ZeroDivisionError
    await asyncio.to_thread(runtime.wait_for, CloseSession, 2)


async def test_messages_of_an_asyncio_session_go_out_in_the_order_of_their_ids(
    async_client: AsyncClient, runtime: ToyRuntime
) -> None:
    """A task that is cancelled takes its command back in the moment in which another one sends."""
    runtime.script("plan", never)
    async with async_client.session("toy") as session:
        await session.observe(FRAME, STATE)
        for _ in range(5):
            planning = asyncio.ensure_future(session.plan(goal_frames=FRAME))
            await asyncio.sleep(0)
            planning.cancel()
            observing = [asyncio.ensure_future(session.observe(FRAME, STATE)) for _ in range(3)]
            await asyncio.gather(*observing)


async def test_an_asyncio_session_ends_with_its_server(async_client: AsyncClient, runtime: ToyRuntime) -> None:
    session = await async_client.session("toy").__aenter__()
    await asyncio.to_thread(runtime.run, runtime.edge.stop())
    for _ in range(2):
        with pytest.raises(Unavailable):
            await session.observe(FRAME, STATE)


def end_all_sessions(runtime: ToyRuntime) -> None:
    async def close() -> None:
        await runtime.dispatcher.drain()
        runtime.dispatcher.close()

    runtime.run(close())


def test_leaving_a_session_that_the_server_has_ended_is_silent(client: Client, runtime: ToyRuntime) -> None:
    with client.session("toy") as session:
        session.set_goal(FRAME)
        end_all_sessions(runtime)
    with pytest.raises(FailedPrecondition, match="is closed"):
        session.plan()


async def leave_ended_session(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client, client.session("toy") as session:
        await session.set_goal(FRAME)
        await asyncio.to_thread(end_all_sessions, runtime)


def test_leaving_an_asyncio_session_that_the_server_has_ended_is_silent(runtime: ToyRuntime) -> None:
    asyncio.run(leave_ended_session(runtime))


async def close_the_client_before_it_connects(address: str) -> None:
    async with connect_async(address) as client:

        async def use() -> None:
            async with client.session("toy") as session:
                await session.set_goal(FRAME)

        using = asyncio.ensure_future(use())
        for _ in range(20):  # until the first message waits for the connection
            await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(10):
            (error,) = await asyncio.gather(using, return_exceptions=True)
        assert isinstance(error, Unavailable)


def test_what_waits_for_a_connection_ends_when_the_client_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_answers:
        asyncio.run(close_the_client_before_it_connects(f"127.0.0.1:{nobody_answers.getsockname()[1]}"))


def test_a_close_that_is_refused_has_no_effect(client: Client, runtime: ToyRuntime) -> None:
    let_go, plan_script = asyncio.Event(), runtime.scripts["plan"]

    async def held(job: Job) -> None:
        await let_go.wait()
        await plan_script(job)

    async def release() -> None:
        let_go.set()

    runtime.script("plan", held)
    with client.session("toy") as session, ThreadPoolExecutor(1) as other_thread:
        session.observe(FRAME, STATE)
        planning = other_thread.submit(session.plan, goal_frames=FRAME)
        runtime.wait_for(Submit)
        for _ in range(2):
            with pytest.raises(FailedPrecondition, match="another thread waits"):
                session.close()
        with pytest.raises(FailedPrecondition, match="another thread waits"):
            session.set_goal(FRAME)
        runtime.run(release())
        assert planning.result(timeout=10).num_iterations == 3
        assert session.plan(goal_frames=FRAME).num_iterations == 3
        assert not runtime.seen(CancelRequest)
        assert not runtime.seen(CloseSession)
        assert {submit.task for submit in runtime.seen(Submit)} == {"plan"}
    runtime.wait_for(CloseSession)


def test_what_a_call_of_another_fault_has_asked_for_is_taken_back(client: Client, runtime: ToyRuntime) -> None:
    plan_script = runtime.scripts["plan"]
    with client.session("toy") as session:
        session.observe(FRAME, STATE)
        runtime.script("plan", never)
        session.observe(FRAME[:10], STATE, wait=False)
        with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
            session.plan(goal_frames=FRAME)
        runtime.script("plan", plan_script)
        assert session.plan(goal_frames=FRAME).num_iterations == 3


def test_closing_raises_a_refusal_that_nothing_has_raised(client: Client, runtime: ToyRuntime) -> None:
    session = client.session("toy")
    session.observe(FRAME[:10], STATE, wait=False)
    with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
        session.close()
    session.close()
    runtime.wait_for(CloseSession)


def test_each_observation_is_its_own_fault_where_no_history_is_kept(client: Client) -> None:
    with client.session("toy") as session:
        for _ in range(2):
            session.observe(FRAME[:10], STATE, wait=False)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="tensor 'frames' has shape"):
                session.set_goal(FRAME)
        session.set_goal(FRAME)


def test_two_threads_that_wait_in_one_session_are_told_so(client: Client) -> None:
    with client.session("toy") as session:
        with session._reading, pytest.raises(FailedPrecondition, match="one session per thread"):
            session.set_goal(FRAME)
        session.set_goal(FRAME)
