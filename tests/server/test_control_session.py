"""Robot.Control: observations in, chunks and events out, over the real edge with a scripted policy behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from control_stream import Held, Kind, Robot, actions_of, answer, opened, policy_runtime
from toy_policy import HORIZON, chunk_of
from toy_runtime import Job, ToyRuntime

from mstar_rt.message import CancelRequest, Submit
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import runtime_pb2, task_pb2, task_pb2_grpc
from mstar_rt.protos.arrays import tensor_from_array


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


@pytest.fixture
def robot(channel: grpc.Channel) -> Robot:
    return opened(channel)


def test_an_observation_is_answered_by_a_chunk(channel: grpc.Channel) -> None:
    robot = Robot(channel, epoch=7)
    first = robot.hear("opened")
    assert (first.action_horizon, first.epoch, first.admitted_hz, first.shared_memory) == (HORIZON, 7, 20.0, False)
    assert first.session_id.startswith("s-")
    assert first.max_message_bytes == 1 << 20
    assert [camera.name for camera in first.schema.cameras] == ["top", "wrist"]
    assert first.schema.normalization == "lab"
    robot.observe(1, 5, epoch=7, client_time_ns=-12)
    chunk = robot.hear("chunk")
    inputs = {"image_top": np.full((16, 16, 3), 5, np.uint8), "state": np.full(3, 5, np.float32)}
    np.testing.assert_array_equal(actions_of(chunk), chunk_of(inputs, 0))
    assert (chunk.answers_seq, chunk.epoch, chunk.client_time_ns, chunk.num_denoise_steps) == (1, 7, -12, 5)
    assert (chunk.delay_assumed, chunk.instruction_index, list(chunk.flags)) == (0, 0, ["toy"])
    assert chunk.request_id.startswith("r-")
    timing = chunk.timing
    assert 0 < timing.decode_us < timing.total_us
    assert timing.encode_us > 0
    assert [node.name for node in timing.nodes] == ["encoder"]
    robot.close()
    with pytest.raises(StopIteration):
        next(robot.call)


def test_the_options_of_the_session_are_those_of_every_request(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    robot = opened(channel, num_denoise_steps=7, model_options={"hold_s": {"number": 0.25}}, seed=3)
    for seq in (1, 2):
        robot.observe(seq)
        assert robot.hear("chunk").num_denoise_steps == 7
    first, second = runtime.wait_for(Submit, 2)
    for submit in (first, second):
        assert submit.criticality == "control"
        assert submit.params["normalization"] == "lab"
        assert (submit.params["hold_s"], submit.params["instruction"], submit.params["chunking"]) == (
            0.25,
            "push",
            "none",
        )
    assert first.params["seed"] != second.params["seed"]


def test_equal_seeds_and_observations_give_equal_requests(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    for _ in range(2):
        robot = opened(channel, seed=11, epoch=2)
        for seq in (1, 2):
            robot.observe(seq, epoch=2)
            robot.hear("chunk")
        robot.say(reset=wire.ResetEpisode(epoch=3))
        robot.hear_event(Kind.KIND_RESET_DONE)
        robot.observe(3, epoch=3)
        robot.hear("chunk")
        robot.close()
    seeds = [submit.params["seed"] for submit in runtime.wait_for(Submit, 6)]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds[:3])) == 3


def test_a_constant_scene_still_yields_chunks(robot: Robot) -> None:
    for seq in range(5):
        robot.observe(seq)
        assert robot.hear("chunk").answers_seq == seq


def test_the_newest_observation_wins(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1, 1)
    held.wait()
    for seq in (2, 3, 4):
        robot.observe(seq, seq)
    for seq in (2, 3):
        assert robot.hear_event(Kind.KIND_DROPPED_STALE, seq).replaced_by == seq + 1
    held.end()
    assert robot.hear("chunk").answers_seq == 1
    held.wait(2)
    held.end()
    chunk = robot.hear("chunk")
    assert chunk.answers_seq == 4
    assert actions_of(chunk)[0, 0] == pytest.approx(4.04)


def test_a_heartbeat_is_echoed_while_the_model_runs(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.say(heartbeat=wire.Heartbeat(number=99))
    assert robot.hear("heartbeat").number == 99
    held.end()
    robot.hear("chunk")


def test_another_robot_opens_at_once_while_the_model_runs(
    runtime: ToyRuntime, robot: Robot, channel: grpc.Channel
) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    other = opened(channel)
    other.close()
    held.end()
    robot.hear("chunk")


def test_two_robots_do_not_know_of_one_another(runtime: ToyRuntime, robot: Robot, channel: grpc.Channel) -> None:
    """Both start at tick 0 with seq 0; a reset of one leaves the other as it is."""
    other = opened(channel)
    for value, each in ((1, robot), (2, other)):
        each.observe(0, value)
    for value, each in ((1, robot), (2, other)):
        chunk = each.hear("chunk")
        assert (chunk.answers_seq, actions_of(chunk)[0, 0]) == (0, pytest.approx(value * 1.01))
    robot.say(reset=wire.ResetEpisode(epoch=1))
    robot.hear_event(Kind.KIND_RESET_DONE)
    other.observe(1, 2, executed_index=0)
    assert other.hear("chunk").epoch == 0


def test_what_was_asked_for_is_answered_after_the_robot_stops_sending(robot: Robot) -> None:
    robot.observe(1)
    robot.stop_sending()
    assert robot.hear("chunk").answers_seq == 1
    with pytest.raises(StopIteration):
        next(robot.call)


def test_close_takes_back_what_runs(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.close()
    runtime.wait_for(CancelRequest)


def test_a_robot_that_vanishes_takes_back_what_runs(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.call.cancel()
    runtime.wait_for(CancelRequest)


# ---- instructions and episodes


def test_an_instruction_holds_from_the_next_observation_on(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.observe(2)
    robot.say(set_instruction=wire.SetInstruction(instruction="pull"))
    robot.say(heartbeat=wire.Heartbeat(number=1))
    robot.hear("heartbeat")
    held.end()
    assert robot.hear("chunk").instruction_index == 0
    assert held.wait(2).params["instruction"] == "push"
    held.end()
    assert robot.hear("chunk").instruction_index == 0
    robot.observe(3)
    assert held.wait(3).params["instruction"] == "pull"
    held.end()
    assert robot.hear("chunk").instruction_index == 1


def test_nothing_of_an_episode_reaches_the_next_one(runtime: ToyRuntime, robot: Robot) -> None:
    held = Held(runtime)
    robot.observe(1)
    held.wait()
    robot.observe(2)
    robot.say(reset=wire.ResetEpisode(epoch=5, instruction="pull"))
    assert robot.hear_event(Kind.KIND_DROPPED_EPOCH, 1).epoch == 0
    robot.hear_event(Kind.KIND_DROPPED_EPOCH, 2)
    assert robot.hear_event(Kind.KIND_RESET_DONE).epoch == 5
    runtime.wait_for(CancelRequest)
    robot.observe(3, epoch=0)
    assert robot.hear_event(Kind.KIND_DROPPED_EPOCH, 3).epoch == 5
    robot.observe(4, epoch=5)
    assert held.wait(2).params["instruction"] == "pull"
    held.end(lambda job: None)
    held.end()
    chunk = robot.hear("chunk")
    assert (chunk.answers_seq, chunk.epoch, chunk.instruction_index) == (4, 5, 0)


def test_noise_of_the_client_reaches_the_policy(runtime: ToyRuntime, robot: Robot) -> None:
    noise = np.arange(HORIZON * 2, dtype=np.float32).reshape(HORIZON, 2)
    seen: list[np.ndarray] = []

    async def keep(job: Job) -> None:
        seen.append(job.inputs["noise"])
        answer(job)

    runtime.script("act", keep)
    robot.observe(1, noise=tensor_from_array(noise))
    robot.hear("chunk")
    np.testing.assert_array_equal(seen[0], noise)


def test_a_policy_that_is_run_outside_of_a_session_is_not_control(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    tensors = {
        "image_top": tensor_from_array(np.zeros((16, 16, 3), np.uint8)), "state": tensor_from_array(np.zeros(3, np.float32)),
    }  # fmt: skip
    options = {"instruction": {"text": "push"}, "normalization": {"text": "lab"}}
    request = task_pb2.TaskRequest(model="toy", task="act", tensors=tensors, model_options=options)
    assert list(task_pb2_grpc.TasksStub(channel).Run(request))[-1].HasField("done")
    (submit,) = runtime.wait_for(Submit)
    assert submit.criticality == "planning"


def test_what_becomes_of_observations_is_counted(runtime: ToyRuntime, robot: Robot, runtime_stub: Any) -> None:
    def counted() -> dict[str, float]:
        values = runtime_stub.Stats(runtime_pb2.StatsRequest()).processes["server"].values
        return {name.removeprefix("control_"): value for name, value in values.items() if "control_" in name and value}

    held = Held(runtime)
    robot.observe(1)
    held.wait()
    for seq in (2, 3, 4):
        robot.observe(seq, **({"images": {}} if seq == 4 else {}))
    for seq in (2, 3):
        robot.hear_event(Kind.KIND_DROPPED_STALE, seq)
    held.end()
    robot.hear("chunk")
    robot.hear_event(Kind.KIND_FAILED, 4)
    assert counted() == {"sessions": 1, "chunks": 1, "dropped_stale": 2, "failed": 1}
    robot.close()
    list(robot.call)
    assert counted() == {"chunks": 1, "dropped_stale": 2, "failed": 1}
