"""Continuity between chunks, as the policy's requests show it: previous actions, delay, attention horizon, ensembles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from control_stream import Held, Kind, Robot, actions_of, opened, policy_runtime
from toy_policy import HORIZON, POLICY
from toy_runtime import Job, ToyRuntime

from mstar_rt.clock import ManualClock
from mstar_rt.message import Submit
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

GUIDED = {"mode": wire.RealTimeChunking.MODE_GUIDED}
PREFIX = {"mode": wire.RealTimeChunking.MODE_PREFIX}
ENSEMBLE = {"mode": wire.RealTimeChunking.MODE_TEMPORAL_ENSEMBLE}


class Requests:
    """A script that keeps what the policy was given, and answers at once."""

    def __init__(self, runtime: ToyRuntime) -> None:
        self._answer = runtime.scripts["act"]
        self._runtime = runtime
        self.inputs: list[dict[str, np.ndarray]] = []
        runtime.script("act", self._keep)

    async def _keep(self, job: Job) -> None:
        self.inputs.append(job.inputs)
        await self._answer(job)

    def last(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self.inputs[-1], dict(self._runtime.wait_for(Submit)[-1].params)


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


@pytest.fixture
def requests(runtime: ToyRuntime) -> Requests:
    return Requests(runtime)


def chunk_for(robot: Robot, seq: int, value: int = 0, **fields: Any) -> wire.ActionChunk:
    robot.observe(seq, value, **fields)
    chunk: wire.ActionChunk = robot.hear("chunk")
    assert chunk.answers_seq == seq
    return chunk


def test_the_actions_that_are_left_guide_the_next_chunk(requests: Requests, channel: grpc.Channel) -> None:
    robot = opened(channel, chunking=GUIDED)
    first = chunk_for(robot, 1, executed_index=-1)
    assert first.delay_assumed == 0
    assert requests.last()[1]["chunking"] == "none"
    second = chunk_for(robot, 2, 50, executed_index=2, executed_chunk_seq=1, delay=3)
    inputs, params = requests.last()
    np.testing.assert_array_equal(inputs["previous_actions"], actions_of(first)[3:])
    assert (params["chunking"], params["delay"], second.delay_assumed) == ("guided", 3, 3)
    assert "prefix_attention_horizon" not in params
    # The policy froze the delay's actions, as it was asked to.
    np.testing.assert_array_equal(actions_of(second)[:3], actions_of(first)[3:6])
    # Tick 3 + 4 of chunk 2, said by the older chunk: row 4 of chunk 2 is there already.
    chunk_for(robot, 3, executed_index=6, executed_chunk_seq=1)
    np.testing.assert_array_equal(requests.last()[0]["previous_actions"], actions_of(second)[4:])


def test_nothing_left_is_plain_generation(requests: Requests, channel: grpc.Channel) -> None:
    robot = opened(channel, chunking=GUIDED)
    chunk_for(robot, 1, executed_index=-1)
    second = chunk_for(robot, 2, executed_index=HORIZON - 1, executed_chunk_seq=1, delay=2)
    inputs, params = requests.last()
    assert (params["chunking"], "previous_actions" in inputs, second.delay_assumed) == ("none", False, 0)
    assert params["delay"] == 0
    chunk_for(robot, 3, executed_index=0, executed_chunk_seq=2, delay=2)
    assert requests.last()[1]["chunking"] == "guided"
    robot.say(reset=wire.ResetEpisode(epoch=1))
    robot.hear_event(Kind.KIND_RESET_DONE)
    chunk_for(robot, 4, executed_index=-1, epoch=1)
    assert requests.last()[1]["chunking"] == "none"
    robot.observe(5, executed_index=0, executed_chunk_seq=3, epoch=1)
    assert (
        "executed_chunk_seq is 3, but no chunk of this episode" in robot.hear_event(Kind.KIND_FAILED, 5).detail.message
    )


def test_previous_actions_of_the_robot_win(requests: Requests, channel: grpc.Channel) -> None:
    robot = opened(channel, chunking=PREFIX)
    own = np.arange(4, dtype=np.float32).reshape(2, 2)
    for seq in (1, 2):
        chunk_for(robot, seq, previous_actions=tensor_from_array(own), delay=1)
        inputs, params = requests.last()
        np.testing.assert_array_equal(inputs["previous_actions"], own)
        assert (params["chunking"], params["delay"]) == ("prefix", 1)
    chunk_for(robot, 3, previous_actions=tensor_from_array(np.zeros((0, 2), np.float32)))
    assert requests.last()[1]["chunking"] == "none"


def test_options_of_the_chunking_reach_the_policy(requests: Requests, channel: grpc.Channel) -> None:
    mode = wire.RealTimeChunking
    robot = opened(
        channel,
        chunking={
            "mode": mode.MODE_GUIDED_IDENTITY, "schedule": mode.SCHEDULE_EXPONENTIAL, "max_guidance_weight": 5.0,
            "prefix_attention_horizon": 6, "delay": 2,
        },
    )  # fmt: skip
    chunk_for(robot, 1)
    chunk = chunk_for(robot, 2, executed_index=0)
    params = requests.last()[1]
    assert (params["chunking"], params["schedule"], params["max_guidance_weight"]) == (
        "guided_identity",
        "exponential",
        5.0,
    )
    assert (params["prefix_attention_horizon"], params["delay"], chunk.delay_assumed) == (6, 2, 2)
    robot.observe(3, executed_index=0, delay=3)
    assert "opened with 2 for all" in robot.hear_event(Kind.KIND_FAILED, 3).detail.message


def test_guidance_ends_where_the_robot_plans_anew(requests: Requests, channel: grpc.Channel) -> None:
    """Unless there is less to go on from."""
    robot = opened(channel, chunking=GUIDED, replan_every=3)
    chunk_for(robot, 1, executed_index=-1)
    for seq, index, delay, expected in ((2, 2, 1, 5), (3, 2, 7, 5), (4, 4, 1, 3), (5, 6, 0, 1)):
        chunk_for(robot, seq, executed_index=index, delay=delay)
        assert requests.last()[1]["prefix_attention_horizon"] == expected


@pytest.mark.parametrize("chunking", [GUIDED, PREFIX, GUIDED | {"delay": 4}, GUIDED | {"prefix_attention_horizon": 6}])
def test_no_more_is_frozen_than_is_left(requests: Requests, channel: grpc.Channel, chunking: dict[str, Any]) -> None:
    """A slow server: the robot has 2 actions left, then it holds. More frozen rows would only make it stand still."""
    robot = opened(channel, chunking=chunking)
    first = chunk_for(robot, 1, 10, executed_index=-1)
    fixed = {} if "delay" in chunking else {"delay": 4}
    second = chunk_for(robot, 2, 50, executed_index=HORIZON - 3, **fixed)
    inputs, params = requests.last()
    assert len(inputs["previous_actions"]) == params["delay"] == second.delay_assumed == 2
    assert params.get("prefix_attention_horizon") == chunking.get("prefix_attention_horizon")
    np.testing.assert_array_equal(actions_of(second)[:2], actions_of(first)[-2:])
    assert (actions_of(second)[2:] != actions_of(first)[-1]).all()


@pytest.mark.parametrize(
    ("chunking", "fields", "sentence"),
    [
        (GUIDED, {"executed_index": 8}, "executed_index is 8, but chunk 1 has 8 actions: expected -1 (none of it) to 7"),
        (GUIDED, {"executed_index": -2}, "executed_index is -2"),
        (GUIDED, {"executed_chunk_seq": 1}, "executed_chunk_seq without executed_index"),
        (GUIDED, {"executed_index": 0, "executed_chunk_seq": 9}, "executed_chunk_seq is 9, but no chunk"),
        (GUIDED, {}, "neither executed_index nor previous_actions"),
        (GUIDED, {"executed_index": 0, "delay": 8}, "the delay is 8 actions, the most that a chunk of this policy"),
        (PREFIX, {"executed_index": 0, "delay": 5}, "the delay is 5 actions, the most that the policy was trained for is 4"),
        (
            GUIDED | {"prefix_attention_horizon": 2}, {"executed_index": 0, "delay": 3},
            "the delay is 3 actions, but prefix_attention_horizon is 2: expected at least the delay",
        ),
        (ENSEMBLE, {}, "no executed_index, which chunking mode 'temporal_ensemble' needs"),
        (ENSEMBLE, {"executed_index": 0, "delay": 1}, "has delay, which a session with chunking mode 'temporal_ensemble'"),
        (None, {"delay": 1}, "the observation has delay, which a session without chunking does not use"),
        (None, {"previous_actions": tensor_from_array(np.zeros((1, 2), np.float32))}, "has previous_actions, which"),
    ],
)  # fmt: skip
def test_an_observation_that_says_nonsense_fails_alone(
    channel: grpc.Channel, chunking: Any, fields: dict[str, Any], sentence: str
) -> None:
    robot = opened(channel, chunking=chunking)
    chunk_for(robot, 1, executed_index=-1)
    robot.observe(2, **fields)
    event = robot.hear_event(Kind.KIND_FAILED, 2)
    assert event.detail.code == "INVALID_ARGUMENT"
    assert sentence in event.detail.message
    chunk_for(robot, 3, executed_index=-1)


def test_no_action_of_a_chunk_that_was_not_sent(channel: grpc.Channel) -> None:
    robot = opened(channel, chunking=GUIDED)
    robot.observe(1, executed_index=0)
    assert "this episode has no chunk yet" in robot.hear_event(Kind.KIND_FAILED, 1).detail.message


def test_the_delay_is_estimated_without_the_first_answer() -> None:
    """A cold start of 3 s is 60 ticks; after it answers take 110 ms, 3 ticks at 20 Hz, then 260 ms."""
    clock = ManualClock()
    with policy_runtime(clock=clock) as runtime, grpc.insecure_channel(runtime.address) as channel:
        robot, held = opened(channel, chunking=GUIDED), Held(runtime)
        for seq, (assumed, takes_ms) in enumerate([(0, 3000), (1, 110), (3, 260), (6, 10), (6, 10)], start=1):
            robot.observe(seq, executed_index=-1)
            held.wait(seq)
            clock.advance_ns(takes_ms * 1_000_000)
            held.end()
            assert robot.hear("chunk").delay_assumed == assumed
        robot.close()


def test_an_estimate_that_no_chunk_bridges_is_forgotten() -> None:
    """One answer takes 500 ms, 10 ticks: a whole chunk of 8 that is left could not bridge it, which is said until it is
    out of the window. With less left the robot holds before.
    """
    clock = ManualClock()
    with policy_runtime(clock=clock) as runtime, grpc.insecure_channel(runtime.address) as channel:
        robot, held = opened(channel, chunking=GUIDED), Held(runtime)
        for seq, takes_ms in enumerate([1, 60, 500], start=1):
            robot.observe(seq, executed_index=-1)
            held.wait(seq)
            clock.advance_ns(takes_ms * 1_000_000)
            held.end()
            robot.hear("chunk")
        for seq in (4, 6):
            robot.observe(seq, executed_index=-1)
            detail = robot.hear_event(Kind.KIND_FAILED, seq).detail
            assert "the delay is 8 actions, the most that a chunk of this policy can bridge is 7" in detail.message
            assert "the server is too slow" in detail.message
            robot.observe(seq + 1, executed_index=2)
            assert held.wait(2 + seq // 2).params["delay"] == {4: 5, 6: 1}[seq]
            held.end()
            robot.hear("chunk")
        robot.close()


def test_overlapping_chunks_are_averaged(requests: Requests, channel: grpc.Channel) -> None:
    robot = opened(channel, chunking=ENSEMBLE | {"ensemble_decay": 0.5})
    first = actions_of(chunk_for(robot, 1, 0, executed_index=-1))
    second = actions_of(chunk_for(robot, 2, 10, executed_index=1, executed_chunk_seq=1))
    raw = np.float32(10.1) + np.arange(HORIZON, dtype=np.float32) / 100
    older, newer = 1.0, np.exp(-0.5)
    expected = (older * first[2:, 0] + newer * raw[:-2]) / (older + newer)
    np.testing.assert_allclose(second[:-2, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(second[-2:, 0], raw[-2:], rtol=1e-6)
    assert "previous_actions" not in requests.last()[0]
    robot.say(reset=wire.ResetEpisode(epoch=1))
    robot.hear_event(Kind.KIND_RESET_DONE)
    third = actions_of(chunk_for(robot, 3, 10, executed_index=-1, epoch=1))
    np.testing.assert_allclose(third[:, 0], raw, rtol=1e-6)


def test_a_robot_is_answered_as_often_as_it_asks(runtime: ToyRuntime, channel: grpc.Channel) -> None:
    """Every 4 ticks, by actions or by time, whichever comes first; after a failure at once."""
    robot = opened(channel, replan_every=4, control_hz=0.01)
    held = Held(runtime)

    def answered(seq: int, count: int, **fields: Any) -> None:
        robot.observe(seq, **fields)
        held.wait(count)
        held.end()
        robot.hear("chunk")

    answered(1, 1, executed_index=-1)
    for seq in (2, 3):
        robot.observe(seq, executed_index=seq - 1)
        robot.hear_event(Kind.KIND_NOT_DUE, seq)
    answered(4, 2, executed_index=3)
    robot.observe(5, executed_index=-1)
    robot.hear_event(Kind.KIND_NOT_DUE, 5)
    answered(6, 3, executed_index=3)
    robot.observe(7, executed_index=3)
    held.wait(4)
    held.end(lambda job: job.fail("INTERNAL", "broken"))
    robot.hear_event(Kind.KIND_FAILED, 7)
    answered(8, 5, executed_index=3)


def test_a_policy_that_sees_a_history_gets_it(channel: grpc.Channel) -> None:
    """Three observations at once: the first is repeated, an overwritten one is in it, an episode starts anew."""
    policy = replace(POLICY, num_observations=3, chunking=(), max_prefix_delay=None)
    with policy_runtime(policy) as runtime, grpc.insecure_channel(runtime.address) as to_history:
        held, seen = Held(runtime), []

        def keep(job: Job) -> None:
            seen.append((job.inputs["state"][:, 0].tolist(), job.inputs["image_top"][:, 0, 0, 0].tolist()))
            job.emit("actions", np.zeros((HORIZON, 2), np.float32))
            job.finish()

        robot = opened(to_history)
        robot.observe(1, 1)
        held.wait()
        for value in (2, 3):
            robot.observe(value, value)
        robot.hear_event(Kind.KIND_DROPPED_STALE, 2)
        held.end(keep)
        robot.hear("chunk")
        held.wait(2)
        held.end(keep)
        assert robot.hear("chunk").num_denoise_steps == 5
        robot.say(reset=wire.ResetEpisode(epoch=1))
        robot.hear_event(Kind.KIND_RESET_DONE)
        robot.observe(4, 4, epoch=1)
        held.wait(3)
        held.end(keep)
        robot.hear("chunk")
        robot.close()
    assert seen == [([1.0] * 3, [1] * 3), ([1.0, 2.0, 3.0], [1, 2, 3]), ([4.0] * 3, [4] * 3)]
