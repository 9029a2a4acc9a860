"""One foreign client's control session, against the scripted policy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from control_stream import Held, answer, policy_runtime, schema
from toy_runtime import Job, ToyRuntime

from mstar_rt.errors import Cancelled, DeadlineExceeded, FailedPrecondition, Internal, MstarError, Unavailable
from mstar_rt.message import Submit
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.server.compat.robot import ForeignObservation, ForeignRobot

SIZE = 16
OPEN: dict[str, Any] = {
    "model": "toy",
    "instruction": "push",
    "control_hz": 20.0,
    "replan_every": 4,
    "budget_ms": 60_000.0,
}


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


def seen(value: int = 0, **fields: Any) -> ForeignObservation:
    image = np.full((SIZE, SIZE, 3), value, np.uint8)
    return ForeignObservation(images={"top": image}, masked=["wrist"], state=np.full(3, value, np.float32), **fields)


def robot_of(runtime: ToyRuntime) -> ForeignRobot:
    return ForeignRobot(runtime.edge.sessions, "ipv4:127.0.0.1:1")


async def opened(runtime: ToyRuntime, **opening: Any) -> ForeignRobot:
    robot = robot_of(runtime)
    await robot.open(wire.OpenControl(**(OPEN | {"schema": schema()} | opening)))
    return robot


def first_row(chunk: wire.ActionChunk) -> float:
    return float(array_from_tensor(chunk.actions, "actions")[0, 0])


def test_one_observation_one_chunk(runtime: ToyRuntime) -> None:
    async def drive() -> list[float]:
        robot = await opened(runtime)
        rows = [first_row(await robot.infer(seen(value))) for value in (0, 50, 100)]
        await robot.infer(seen(1, instruction="touch"))
        await robot.close()
        await robot.close()
        return rows

    assert runtime.run(drive()) == [0.0, 50.5, 101.0]
    submits = runtime.seen(Submit)
    assert [submit.params["instruction"] for submit in submits] == ["push"] * 3 + ["touch"]
    assert {submit.criticality for submit in submits} == {"control"}


def test_asking_sooner_than_announced_is_answered_all_the_same(runtime: ToyRuntime) -> None:
    async def drive() -> int:
        robot = await opened(runtime, control_hz=0.001)
        chunks = [await robot.infer(seen()) for _ in range(3)]
        await robot.close()
        return len(chunks)

    assert runtime.run(drive()) == 3


def test_the_last_chunk_counts_as_executed_up_to_replan_every(runtime: ToyRuntime) -> None:
    chunking = wire.RealTimeChunking(mode=wire.RealTimeChunking.MODE_PREFIX, delay=2)

    async def drive() -> np.ndarray:
        robot = await opened(runtime, chunking=chunking)
        await robot.infer(seen(0))
        chunk = await robot.infer(seen(100))
        await robot.reset()
        again = await robot.infer(seen(100))
        await robot.close()
        assert again.epoch == 1
        assert first_row(again) == 101.0
        return array_from_tensor(chunk.actions, "actions")[:, 0]

    assert np.allclose(runtime.run(drive())[:4], [0.04, 0.05, 101.02, 101.03])


def test_a_refused_robot_is_told_all_differences(runtime: ToyRuntime) -> None:
    async def drive() -> None:
        robot = robot_of(runtime)
        with pytest.raises(FailedPrecondition, match=r"2 differences: camera 'top'.*is missing; no normalization"):
            await robot.open(wire.OpenControl(**(OPEN | {"schema": schema(cameras=[], normalization=None)})))
        with pytest.raises(FailedPrecondition, match="2 differences"):
            await robot.infer(seen())

    runtime.run(drive())


def test_a_failure_is_of_one_observation_and_names_no_path(runtime: ToyRuntime) -> None:
    async def fail(job: Job) -> None:
        job.fail("INTERNAL", "the node failed")

    async def drive() -> float:
        robot = await opened(runtime)
        good = runtime.scripts["act"]
        runtime.script("act", fail)
        with pytest.raises(Internal, match="the node failed"):
            await robot.infer(seen())
        runtime.script("act", good)
        value = first_row(await robot.infer(seen(50)))
        await robot.close()
        return value

    assert runtime.run(drive()) == 50.5


def test_a_late_observation_is_given_a_second_chance(runtime: ToyRuntime) -> None:
    async def late(job: Job) -> None:
        job.fail("DEADLINE_EXCEEDED", "too late")

    async def once(job: Job) -> None:
        if len(budgets) == 0:
            budgets.append(job.submit.deadline_ns)
            await late(job)
        else:
            budgets.append(job.submit.deadline_ns)
            answer(job)

    budgets: list[int | None] = []
    runtime.script("act", once)

    async def drive() -> None:
        robot = await opened(runtime, budget_ms=500.0)
        assert first_row(await robot.infer(seen(50))) == 50.5
        runtime.script("act", late)
        with pytest.raises(DeadlineExceeded):
            await robot.infer(seen(), patience_s=0.0)
        await robot.close()

    runtime.run(drive())
    assert budgets[0] is not None
    assert budgets[1] is not None
    assert budgets[1] - budgets[0] > 15e9


def test_closing_takes_back_what_runs_and_frees_the_place(runtime: ToyRuntime) -> None:
    held = Held(runtime)

    async def start() -> tuple[ForeignRobot, asyncio.Task[wire.ActionChunk]]:
        robot = await opened(runtime)
        return robot, asyncio.create_task(robot.infer(seen()))

    robot, asked = runtime.run(start())
    held.wait()

    async def close() -> tuple[int, MstarError | None]:
        await robot.close()
        with pytest.raises(Cancelled):
            await asked
        return runtime.dispatcher.num_sessions, robot.ended

    assert runtime.run(close())[0] == 0


def test_newest_wins_for_what_is_submitted(runtime: ToyRuntime) -> None:
    held = Held(runtime)

    async def submit(robot: ForeignRobot, *values: int) -> None:
        for value in values:
            robot.submit(seen(value, wants_chunk=True))

    async def hear(robot: ForeignRobot) -> float:
        heard = await robot.next_answer()
        assert isinstance(heard, wire.ActionChunk)
        return first_row(heard)

    robot = runtime.run(opened(runtime))
    runtime.run(submit(robot, 1))
    held.wait()
    runtime.run(submit(robot, 2, 3))
    held.end()
    assert runtime.run(hear(robot)) == pytest.approx(1.01)
    held.wait(2)
    held.end()
    assert runtime.run(hear(robot)) == pytest.approx(3.03)
    runtime.run(robot.close())
    with pytest.raises(Cancelled):
        runtime.run(robot.next_answer())


def test_a_server_that_closes_ends_the_session(runtime: ToyRuntime) -> None:
    robot = runtime.run(opened(runtime))

    async def close() -> None:
        asked = asyncio.create_task(robot.next_answer())
        await asyncio.sleep(0)
        runtime.dispatcher.close()
        with pytest.raises(Unavailable, match="draining"):
            await asked

    runtime.run(close())
