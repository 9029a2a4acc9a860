"""A recorded session comes out of the server again, bit for bit, whatever time did to it; and what differs is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from control_stream import OPEN, POLICY, SIZE, Held, actions_of, answer, chunk_of, observation, policy_runtime, schema
from control_stream import Robot as RawRobot
from toy_runtime import Job, ToyRuntime

from mstar_rt.cli import main
from mstar_rt.client import ControlSession, Recording, connect, connect_async
from mstar_rt.client.channel import OPTIONS
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.recording.contents import contents_of
from mstar_rt.client.recording.file_format import RecordingReader
from mstar_rt.client.recording.replay import replay
from mstar_rt.client.recording.writer import RecordingWriter
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition, MstarError
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.recording_pb2 import RecordingFrame, RecordingHeader

HISTORY = dataclasses.replace(POLICY, num_observations=3)
LONG = {"budget_ms": 60_000.0, "max_action_age_s": 600.0, "control_hz": 20.0, "instruction": "push"}


def made(job: Job) -> np.ndarray:
    """What was asked for, with noise of its seed."""
    params = job.submit.params
    delay = int(params.get("delay", 0))  # type: ignore[arg-type]
    actions = chunk_of(job.inputs, delay)
    noise = np.random.default_rng(int(params["seed"])).standard_normal(actions.shape)  # type: ignore[arg-type]
    num_given = len(job.inputs["previous_actions"]) if "previous_actions" in job.inputs else 0
    noise[: min(delay, num_given)] = 0
    if num_given:  # guidance: where it ends, and by what
        noise += float(params.get("prefix_attention_horizon") or 0) + job.inputs["previous_actions"][-1, 0]
        noise[: min(delay, num_given)] = 0
    return (actions + noise + len(str(params["instruction"]))).astype(np.float32)


async def noisy(job: Job) -> None:
    answer(job, made(job))


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        running.script("act", noisy)
        yield running


def see(number: int) -> dict[str, Any]:
    return {
        "images": {"top": np.full((SIZE, SIZE, 3), number % 256, np.uint8)},
        "state": np.full(3, number / 7, np.float32),
        "masked_cameras": ["wrist"],
    }


def drive(robot: ControlSession, num_ticks: int, start: int = 0) -> None:
    """As fast as it goes: what is on its way when is chance, and how many observations are not due."""
    robot.wait_for_first_action(20.0, **see(start))
    for tick in range(start, start + num_ticks):
        while robot.act(**see(tick)).action is None:
            with suppress(MstarError):
                robot.wait_for_chunk(robot.stats.num_observations, 20.0)


def record(runtime: ToyRuntime, path: Path, **settings: Any) -> int:
    """Two episodes, two instructions; returns how many chunks came."""
    with connect(runtime.address) as client:
        policy = client.describe("toy").policy
        assert policy is not None
        schema = dataclasses.replace(policy.schema, normalization="lab")
        with client.control("toy", schema=schema, record=path, **{**LONG, **settings}) as robot:
            drive(robot, 12)
            robot.set_instruction("pull it")
            drive(robot, 8)
            robot.reset("touch", seed=5 if "seed" in settings else None)
            drive(robot, 8)
            robot.set_instruction("hold")
            drive(robot, 4)
    with open(path, "rb") as file:
        return contents_of(RecordingReader(file)).num_chunks


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 3},
        {"replan_every": 3},
        {"chunking": "prefix", "shared_memory": False},
        {"chunking": "guided", "replan_every": 3},
        {"chunking": "guided", "delay": 2, "prefix_attention_horizon": 5},
        {"chunking": "temporal_ensemble", "replan_every": 2},
    ],
    ids=str,
)
def test_a_session_comes_out_bit_for_bit(runtime: ToyRuntime, tmp_path: Path, settings: dict[str, Any]) -> None:
    num_chunks = record(runtime, tmp_path / "r", **settings)
    assert num_chunks >= 4
    for _ in range(2):
        with connect(runtime.address) as client:
            done = replay(client, tmp_path / "r")
        assert done.first is None, str(done.first)
        assert (done.num_chunks, done.num_equal, done.seed_is_known) == (num_chunks, num_chunks, True)


@pytest.mark.parametrize("settings", [{"replan_every": 3}, {"replan_every": 2, "chunking": "prefix"}], ids=str)
def test_a_policy_with_a_history_sees_it_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    with policy_runtime(HISTORY) as runtime:
        runtime.script("act", noisy)
        for attempt in range(10):  # on an idle machine each observation may be answered before the next one is due
            num_chunks = record(runtime, tmp_path / f"r{attempt}", **settings)
            with connect(runtime.address) as client:
                done = replay(client, tmp_path / f"r{attempt}")
            if done.contents.num_unanswered:
                break
    assert done.contents.num_unanswered > 0
    assert done.first is None, str(done.first)
    assert done.num_equal == num_chunks


def test_the_delay_that_a_server_has_estimated_is_replayed(tmp_path: Path) -> None:
    """A robot that does not say a delay gets chunks for what the server has measured, which another one measures otherwise."""
    clock = ManualClock(10**9)
    with policy_runtime(clock=clock) as runtime:
        runtime.script("act", slow_on(clock, ms=130))
        writer = RecordingWriter(Recording(tmp_path / "r"))
        recorded = [chunk.delay_assumed for chunk in recorded_by_hand(runtime, writer)]
        assert recorded == [0, 1, 3, 3]
    with policy_runtime() as runtime, connect(runtime.address) as client:
        runtime.script("act", noisy)
        done = replay(client, tmp_path / "r")
        assert (done.num_chunks, done.first) == (4, None)


def slow_on(clock: ManualClock, ms: int) -> Any:
    async def slow(job: Job) -> None:
        clock.advance_ns(ms * 1_000_000)
        answer(job, made(job))

    return slow


def recorded_by_hand(runtime: ToyRuntime, writer: RecordingWriter) -> list[wire.ActionChunk]:
    def put(**what: Any) -> None:
        writer.put(RecordingFrame(**what))

    opening = wire.OpenControl(**OPEN, schema=schema(), chunking={"mode": "MODE_PREFIX"}, seed=9)
    put(header=RecordingHeader())
    put(request=wire.ControlRequest(open=opening))
    chunks = []
    with grpc.insecure_channel(runtime.address, options=OPTIONS) as channel:
        robot = RawRobot(channel)
        robot.say(open=opening)
        robot.hear("opened")
        for seq in (1, 2, 3, 4):
            seen = observation(seq, seq, executed_index=-1)
            put(request=wire.ControlRequest(observation=seen))
            robot.say(observation=seen)
            chunks.append(robot.hear("chunk"))
            put(response=wire.ControlResponse(chunk=chunks[-1]))
        robot.close()
    writer.close()
    return chunks


def test_the_first_difference_is_shown(runtime: ToyRuntime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r"
    num_chunks = record(runtime, path)
    num_made = 0

    async def otherwise(job: Job) -> None:
        nonlocal num_made
        num_made += 1
        actions = made(job)
        if num_made == 3:
            actions[2, 1] = np.nextafter(actions[2, 1], np.float32(np.inf))
            actions[5, 0] += 0.5
        answer(job, actions)

    arguments = ["replay", str(path), "--address", runtime.address]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert f"{num_chunks} chunks are equal, bit for bit" in out
    runtime.script("act", otherwise)
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "first difference: chunk 3 (observation " in said
    assert "epoch 0, connection 1), step 2, dimension 1 (y): recorded " in said
    recorded, replayed = (
        float(word.strip(",")) for word in said.split("recorded ")[1].split("\n")[0].split(" replayed ")
    )
    assert np.float32(replayed) == np.nextafter(np.float32(recorded), np.float32(np.inf))
    assert f"{num_chunks - 1} of {num_chunks} chunks are equal, the others differ by at most 0.5" in said


def test_what_fails_now_is_a_difference(runtime: ToyRuntime, tmp_path: Path) -> None:
    record(runtime, tmp_path / "r")

    async def broken(job: Job) -> None:
        job.fail("INTERNAL", "no luck")

    runtime.script("act", broken)
    with connect(runtime.address) as client:
        done = replay(client, tmp_path / "r")
    assert done.num_equal == 0
    assert "there is none now: failed: no luck" in str(done.first)


def test_sessions_one_behind_the_other_and_another_policy(runtime: ToyRuntime, tmp_path: Path) -> None:
    path = tmp_path / "r"
    first = record(runtime, path)
    both = record(runtime, path, seed=4)
    assert both > first
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with connect(runtime.address) as client:
        done = replay(client, path)
        assert len(done.contents.connections) == 2
        assert (done.first, done.num_equal) == (None, both)
        assert done.contents.torn_bytes > 0
    other = dataclasses.replace(POLICY, action=dataclasses.replace(POLICY.action, size=2, names=("a", "b")))
    differs = pytest.raises(FailedPrecondition, match="action name 0 is 'x', expected 'a'")
    with policy_runtime(other) as another, connect(another.address) as client, differs:
        replay(client, path)


def test_pictures_in_shared_memory_are_in_the_file(runtime: ToyRuntime, tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(runtime, path, shared_memory=True)
    with open(path, "rb") as file:
        frames = [frame for _, frame in RecordingReader(file)]
    pictures = [f.request.observation.images["top"] for f in frames if f.request.HasField("observation")]
    assert pictures[0].data == bytes(SIZE * SIZE * 3)
    assert all(len(each.data) == SIZE * SIZE * 3 and not each.HasField("shared") for each in pictures)
    header = frames[0].header
    assert header.policy.action_horizon == POLICY.action_horizon
    assert policy_info(header.policy).chunking[:3] == ("guided", "guided_identity", "prefix")


def test_in_lockstep_no_clock_decides(runtime: ToyRuntime) -> None:
    """Twice the same motion, with a history that the server is told to answer at certain ticks only."""

    def run(model: ToyRuntime, **settings: Any) -> np.ndarray:
        with connect(model.address) as client:
            policy = client.describe("toy").policy
            assert policy is not None
            given = {**LONG, "schema": dataclasses.replace(policy.schema, normalization="lab"), "seed": 1, **settings}
            with client.control("toy", **given) as robot:
                ticks = [robot.act_in_lockstep(20.0, **see(tick)) for tick in range(11)]
        assert [each.index for each in ticks] == [0, 1, 2, 3] * 2 + [0, 1, 2]
        return np.stack([each.action for each in ticks])

    for settings in ({}, {"chunking": "guided", "delay": 0}):
        first, second = (run(runtime, replan_every=4, **settings) for _ in range(2))
        np.testing.assert_array_equal(first, second)
    with policy_runtime(HISTORY) as history:
        history.script("act", noisy)
        first, second = (run(history, replan_every=4) for _ in range(2))
        np.testing.assert_array_equal(first, second)


async def test_the_asyncio_client_does_the_same(runtime: ToyRuntime, tmp_path: Path) -> None:
    async with connect_async(runtime.address) as client:
        policy = (await client.describe("toy")).policy
        assert policy is not None
        schema = dataclasses.replace(policy.schema, normalization="lab")
        async with client.control("toy", schema=schema, record=tmp_path / "r", replan_every=4, **LONG) as robot:
            ticks = [await robot.act_in_lockstep(20.0, **see(tick)) for tick in range(9)]
    assert [each.index for each in ticks] == [0, 1, 2, 3] * 2 + [0]
    with connect(runtime.address) as blocking:
        assert replay(blocking, tmp_path / "r").num_equal == 3


def test_a_robot_goes_on_when_its_recording_cannot(runtime: ToyRuntime, tmp_path: Path) -> None:
    record(runtime, tmp_path / "r")
    with connect(runtime.address) as client:
        policy = client.describe("toy").policy
        assert policy is not None
        schema = dataclasses.replace(policy.schema, normalization="lab")
        with client.control(
            "toy", schema=schema, record=Recording(tmp_path / "s", 4096 + 20), shared_memory=False, **LONG
        ) as robot:
            drive(robot, 40)
            ended = [event for event in robot.events if event.kind == "recording_ended"]
            assert len(ended) == 1
            assert "max_bytes" in ended[0].detail
    assert (tmp_path / "s").stat().st_size <= 4116


def test_held_chunks_of_the_last_episode_are_not_compared(runtime: ToyRuntime, tmp_path: Path) -> None:
    """An observation that the reset has overtaken has no answer, and takes no part."""
    held = Held(runtime)
    with connect(runtime.address) as client:
        policy = client.describe("toy").policy
        assert policy is not None
        schema = dataclasses.replace(policy.schema, normalization="lab")
        with client.control("toy", schema=schema, record=tmp_path / "r", **LONG) as robot:
            robot.send(**see(1))
            held.wait()
            robot.reset()
            runtime.script("act", noisy)
            robot.wait_for_first_action(20.0, **see(2))
        done = replay(client, tmp_path / "r")
    assert (done.num_equal, done.contents.num_unanswered) == (1, 1)


def test_actions_are_read_as_sent(runtime: ToyRuntime, tmp_path: Path) -> None:
    record(runtime, tmp_path / "r")
    with open(tmp_path / "r", "rb") as file:
        chunks = [frame.response.chunk for _, frame in RecordingReader(file) if frame.response.HasField("chunk")]
    assert all(actions_of(chunk).shape == (8, 2) for chunk in chunks)
