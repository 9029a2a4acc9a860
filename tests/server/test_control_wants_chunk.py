"""A robot may say itself which observations are to be answered, and is told the seed of its noise: what replay needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import grpc
import pytest
from control_stream import POLICY, Kind, Robot, opened, policy_runtime
from toy_runtime import ToyRuntime

from mstar_rt.message import Submit


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


@pytest.fixture
def channel(runtime: ToyRuntime) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(runtime.address) as opened_channel:
        yield opened_channel


def test_it_overrules_replan_every(channel: grpc.Channel) -> None:
    robot = opened(channel, replan_every=4, control_hz=0.1)
    robot.observe(1, executed_index=-1, wants_chunk=False)
    robot.hear_event(Kind.KIND_NOT_DUE, 1)
    for seq in (2, 3):
        robot.observe(seq, executed_index=-1, wants_chunk=True)
        assert robot.hear("chunk").answers_seq == seq
    robot.observe(4, executed_index=-1)
    robot.hear_event(Kind.KIND_NOT_DUE, 4)
    robot.close()


def test_what_wants_no_chunk_is_in_the_history() -> None:
    with (
        policy_runtime(dataclasses.replace(POLICY, num_observations=3)) as runtime,
        grpc.insecure_channel(runtime.address) as channel,
    ):
        robot = opened(channel)
        for seq in (1, 2):
            robot.observe(seq, 30 * seq, wants_chunk=False)
            robot.hear_event(Kind.KIND_NOT_DUE, seq)
        robot.observe(3, 90)
        chunk = robot.hear("chunk")
        robot.close()
        assert chunk.answers_seq == 3
        assert len(runtime.seen(Submit)) == 1
        first = chunk.actions.data[:4]
    assert memoryview(first).cast("f")[0] == pytest.approx(90 + 60 / 100), (
        "the mean of 30, 60 and 90, and the newest state"
    )


def test_the_seed_is_told(channel: grpc.Channel) -> None:
    robot = Robot(channel, seed=5)
    assert robot.hear("opened").seed == 5
    robot.close()
    drawn = set()
    for _ in range(2):
        robot = Robot(channel, epoch=0)
        message = robot.hear("opened")
        assert message.HasField("seed")
        drawn.add(message.seed)
        robot.close()
    assert len(drawn) == 2
