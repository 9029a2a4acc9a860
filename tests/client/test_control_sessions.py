"""Control sessions of both clients against a scripted policy, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from fake_policy_server import FakePolicyServer, FakeStream, Proxy, fake_policy_server, numbers, picture, rows

from mstar_rt.client import Client, ControlSession, RobotAction, connect, connect_async
from mstar_rt.errors import DeadlineExceeded, FailedPrecondition, Internal, NotFound, ResourceExhausted, Unavailable

IMAGES = {"top": picture(), "wrist": picture(9)}
STATE = [0.1, 0.2, 0.0]
SETTINGS = {"instruction": "push", "control_hz": 20.0}


@pytest.fixture
def server() -> Iterator[FakePolicyServer]:
    with fake_policy_server() as running:
        yield running


@pytest.fixture
def client(server: FakePolicyServer) -> Iterator[Client]:
    with connect(server.address) as connected:
        yield connected


@pytest.fixture
def robot(client: Client) -> Iterator[ControlSession]:
    with client.control("toy", **SETTINGS, max_action_age_s=60.0) as session:
        yield session


def act(robot: ControlSession) -> RobotAction:
    return robot.act(images=IMAGES, state=STATE)


def act_until(robot: ControlSession, kind: str, limit: int = 100_000) -> RobotAction:
    """A robot that is faster than any period: ticks until one of that kind."""
    for _ in range(limit):
        action = act(robot)
        if action.kind == kind:
            return action
    raise AssertionError(f"no {kind}: {action}")


def arrived(robot: ControlSession, seq: int) -> None:
    """The chunk that answers observation `seq` is there."""
    while (newest := robot.latest()) is None or newest.seq < seq:
        pass


def test_a_robot_gets_its_actions(server: FakePolicyServer, robot: ControlSession) -> None:
    stream = server.stream()
    assert act(robot).kind == "hold"
    first = stream.observation()
    assert (first.seq, first.epoch, first.executed_index, first.HasField("executed_chunk_seq")) == (1, 0, -1, False)
    stream.answer(first, rows(10))
    robot.wait_for_first_action(timeout_s=10)
    actions = [act(robot) for _ in range(3)]
    assert [(each.kind, each.chunk_seq, each.index) for each in actions] == [("chunk", 1, i) for i in range(3)]
    assert [each.action.tolist() for each in actions] == [[10, 10], [11, 11], [12, 12]]
    assert all(each.instruction == "push" for each in actions)
    second = stream.observation()
    assert (second.seq, second.executed_chunk_seq, second.executed_index) == (2, 1, -1)
    stream.answer(second, rows(20))
    arrived(robot, second.seq)
    assert robot.latest().num_consumed == 3
    late = act(robot)
    assert (late.chunk_seq, late.index, late.action.tolist()) == (2, 3, [23, 23]), "it starts at the row that is due"


def test_the_session_ends_in_order(server: FakePolicyServer, client: Client) -> None:
    with client.control("toy", **SETTINGS) as robot:
        stream = server.stream()
        assert (robot.session_id, robot.connected) == ("c-1", True)
    stream.next("close")
    stream.ended()
    robot.close()
    with pytest.raises(FailedPrecondition, match="is closed: open another one"):
        act(robot)
    assert "connection_lost" not in robot.stats.events


def test_waiting_for_the_first_action_sends_what_it_is_given(server: FakePolicyServer, robot: ControlSession) -> None:
    stream = server.stream()
    with pytest.raises(FailedPrecondition, match="no observation has been sent: give one here"):
        robot.wait_for_first_action(1.0)
    with pytest.raises(DeadlineExceeded, match=r"no action has come within 0.0 s"):
        robot.wait_for_first_action(0.0, IMAGES, STATE)
    stream.answer(stream.observation(), rows(0))
    robot.wait_for_first_action(10.0)
    assert act(robot).kind == "chunk"


def test_waiting_ends_with_what_became_of_the_observation(server: FakePolicyServer, robot: ControlSession) -> None:
    stream = server.stream()
    act(robot)
    stream.event("failed", stream.observation().seq, detail="the gripper melts")
    with pytest.raises(Internal, match="the gripper melts"):
        robot.wait_for_first_action(10.0)
    held = act(robot)
    assert held.reason == "no action has come yet: the gripper melts", "a robot that stands still says why"
    stream.answer(stream.observation(), rows(0))
    robot.wait_for_first_action(10.0)
    assert act(robot).reason == ""


def test_what_cannot_be_mended_is_raised_at_once(server: FakePolicyServer, client: Client) -> None:
    with pytest.raises(NotFound, match="no model 'toi' is served"):
        client.control("toi", **SETTINGS)
    server.opens = lambda stream: stream.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "20 of 15 Hz")
    with pytest.raises(ResourceExhausted, match="20 of 15 Hz"):
        client.control("toy", **SETTINGS)
    server.opens = lambda stream: stream.end(grpc.StatusCode.FAILED_PRECONDITION, "camera 'top' is upside down")
    with pytest.raises(FailedPrecondition, match="camera 'top' is upside down"):
        client.control("toy", **SETTINGS)
    server.policy = None
    with pytest.raises(FailedPrecondition, match="model 'toy' is no policy"):
        client.control("toy", **SETTINGS)
    server.stop()
    with pytest.raises(Unavailable):
        client.control("toy", **SETTINGS)


def test_a_server_that_never_opens(server: FakePolicyServer, client: Client) -> None:
    server.opens = lambda stream: None
    with pytest.raises(Unavailable, match=r"has not opened the session within 0.2 s"):
        client.control("toy", **SETTINGS, open_timeout_s=0.2)


def test_a_refusal_in_the_middle_is_raised_by_act(server: FakePolicyServer, robot: ControlSession) -> None:
    server.stream().end(grpc.StatusCode.INVALID_ARGUMENT, "that makes no sense")
    with pytest.raises(Exception, match="that makes no sense"):
        act_until(robot, "never")
    with pytest.raises(Exception, match="that makes no sense"):
        robot.set_instruction("again")
    assert robot.stats.events["connection_lost"] == 1


def test_a_closed_client_ends_its_sessions(server: FakePolicyServer, client: Client) -> None:
    robot = client.control("toy", **SETTINGS, heartbeat_timeout_s=0.2)
    client.close()
    with pytest.raises(FailedPrecondition, match="is closed: connect again"):
        act(robot)
    server.stream().ended()
    robot.close()


# ---- reset and instructions


def test_nothing_of_the_last_episode_comes_after_a_reset(server: FakePolicyServer, robot: ControlSession) -> None:
    stream = server.stream()
    act(robot)
    of_before = stream.observation()
    stream.answer(of_before, rows(0))
    robot.wait_for_first_action(10.0)
    act(robot)
    late = stream.observation()
    robot.reset("touch", seed=5)
    held = act(robot)
    assert (held.kind, held.action) == ("hold", None)
    assert robot.latest() is None
    reset = stream.next("reset")
    assert (reset.epoch, reset.instruction, reset.seed) == (1, "touch", 5)
    of_after = stream.observation()
    assert (of_after.epoch, of_after.executed_index, of_after.HasField("executed_chunk_seq")) == (1, -1, False)
    stream.answer(late, rows(50))
    stream.event("reset_done", epoch=1)
    stream.answer(of_after, rows(100))
    robot.wait_for_first_action(10.0)
    action = act(robot)
    assert (action.action.tolist(), action.instruction) == ([100, 100], "touch")
    assert robot.stats.chunks == {"used": 2, "epoch": 1}


def test_an_instruction_counts_from_the_chunk_that_was_made_with_it(
    server: FakePolicyServer, robot: ControlSession
) -> None:
    stream = server.stream()
    act(robot)
    stream.answer(stream.observation(), rows(0))
    robot.wait_for_first_action(10.0)
    robot.set_instruction("pull")
    assert act(robot).instruction == "push"
    messages = sorted([stream.incoming.get(timeout=10) for _ in range(2)], key=lambda each: each.WhichOneof("message"))
    assert messages[1].set_instruction.instruction == "pull"
    stream.answer(messages[0].observation, rows(0), instruction_index=1)
    arrived(robot, messages[0].observation.seq)
    assert act(robot).instruction == "pull"


# ---- when things go wrong


def test_an_ended_stream_holds_then_goes_on_with_a_greater_epoch(server: FakePolicyServer, client: Client) -> None:
    with client.control("toy", **SETTINGS, chunking="guided", epoch=7, max_action_age_s=60.0) as robot:
        first = server.stream()
        assert first.opening.epoch == 7
        act(robot)
        asked = first.observation()
        first.answer(asked, rows(0))
        robot.wait_for_first_action(10.0)
        assert act(robot).action.tolist() == [0, 0]
        first.end()
        second = server.stream()
        assert (second.opening.epoch, second.opening.instruction) == (8, "push")
        robot.set_instruction("push on")
        assert second.next("set_instruction").instruction == "push on"
        assert act(robot).action.tolist() == [1, 1], "what has come is executed, whatever the connection does"
        again = second.observation()
        assert (again.epoch, again.executed_index, again.HasField("executed_chunk_seq")) == (8, -1, False)
        assert numbers(again.previous_actions) == rows(1, 7).tolist(), "the server does not know the chunk of before"
        second.answer(asked, rows(70))
        second.answer(again, rows(30), instruction_index=1)
        arrived(robot, again.seq)
        action = act(robot)
        assert (action.action.tolist(), action.index, action.instruction) == ([31, 31], 1, "push on")
        assert robot.stats.chunks == {"used": 2, "epoch": 1}
        assert [each.kind for each in robot.events if each.kind.startswith("connect")] == [
            "connected", "connection_lost", "connected",
        ]  # fmt: skip


def test_a_connection_that_swallows_everything_is_left(server: FakePolicyServer) -> None:
    proxy = Proxy(server.port)
    with connect(proxy.address) as client:
        settings = {**SETTINGS, "heartbeat_timeout_s": 0.3, "max_action_age_s": 0.05}
        with client.control("toy", **settings) as robot:
            stream = server.stream()
            act(robot)
            stream.answer(stream.observation(), rows(0))
            robot.wait_for_first_action(10.0)
            proxy.swallow()
            stopped = act_until(robot, "stop", limit=10_000_000)
            assert "old" in stopped.reason
            again = server.stream()
            assert again.opening.epoch == 1
            act_until_sent(robot, again)
            assert robot.latest().epoch == 1
            (lost,) = [each for each in robot.events if each.kind == "connection_lost"]
            assert lost.detail == "the server has not answered for 0.3 s"
    proxy.close()


def act_until_sent(robot: ControlSession, stream: FakeStream) -> None:
    while stream.incoming.empty():
        act(robot)
    stream.answer(stream.observation(), rows(0))
    robot.wait_for_first_action(10.0)


def test_a_server_that_is_gone_and_comes_back(server: FakePolicyServer, client: Client) -> None:
    with client.control("toy", **SETTINGS) as robot:
        server.stream()
        port = server.port
        server.stop()
        assert "no answer from the server" in act_until_reason(robot)
        assert robot.connected is False
        with pytest.raises(Unavailable, match="there is no connection to the server now"):
            robot.send(IMAGES, STATE)
        back = FakePolicyServer(port)
        stream = back.stream()
        assert stream.opening.epoch >= 1
        act_until_sent(robot, stream)
        assert act(robot).kind == "chunk"
        robot.close()
        back.stop()


def act_until_reason(robot: ControlSession) -> str:
    while "the server" not in (action := act(robot)).reason:
        pass
    return action.reason


def test_a_server_that_lives_is_not_left(server: FakePolicyServer, client: Client) -> None:
    """Heartbeats are answered, or anything else is: both are signs of life."""
    with client.control("toy", **SETTINGS, heartbeat_timeout_s=0.2) as robot:
        stream = server.stream()
        while stream.num_heartbeats < 10 and robot.stats.num_connections == 1:
            act(robot)
        assert robot.stats.num_connections == 1


# ---- asyncio


async def test_the_asyncio_session_does_the_same(server: FakePolicyServer) -> None:
    async with connect_async(server.address) as client:
        async with client.control("toy", **SETTINGS, epoch=3) as robot:
            stream = await asyncio.to_thread(server.stream)
            assert (await robot.act(IMAGES, STATE)).kind == "hold"
            first = await asyncio.to_thread(stream.observation)
            stream.answer(first, rows(10))
            await robot.wait_for_first_action(timeout_s=10)
            actions = [await robot.act(IMAGES, STATE) for _ in range(3)]
            assert [each.action.tolist() for each in actions] == [[10, 10], [11, 11], [12, 12]]
            late = await asyncio.to_thread(stream.observation)
            await robot.set_instruction("pull")
            await robot.reset()
            assert (await robot.act(IMAGES, STATE)).kind == "hold"
            stream.answer(late, rows(50))
            assert (await asyncio.to_thread(stream.next, "set_instruction")).instruction == "pull"
            assert (await asyncio.to_thread(stream.next, "reset")).epoch == 4
            after = await asyncio.to_thread(stream.observation)
            stream.end()
            again = await asyncio.to_thread(server.stream)
            assert (again.opening.epoch, again.opening.instruction) == (5, "pull")
            again.answer(after, rows(60))
            while again.incoming.empty():
                assert (await robot.act(IMAGES, STATE)).kind == "hold"
            again.answer(again.observation(), rows(80))
            await robot.wait_for_first_action(timeout_s=10)
            action = await robot.act(IMAGES, STATE)
            assert (action.action.tolist(), action.instruction) == ([80, 80], "pull")
            assert robot.stats.chunks == {"used": 2, "epoch": 2}
        await robot.close()


async def test_the_asyncio_session_and_a_connection_that_swallows_everything(server: FakePolicyServer) -> None:
    proxy = Proxy(server.port)
    settings = {**SETTINGS, "heartbeat_timeout_s": 0.3, "max_action_age_s": 0.05}
    async with connect_async(proxy.address) as client, client.control("toy", **settings) as robot:
        stream = await asyncio.to_thread(server.stream)
        await robot.act(IMAGES, STATE)
        stream.answer(await asyncio.to_thread(stream.observation), rows(0))
        await robot.wait_for_first_action(10.0)
        proxy.swallow()
        while (await robot.act(IMAGES, STATE)).kind != "stop":
            pass
        again = await asyncio.to_thread(server.stream)
        assert again.opening.epoch == 1
        while again.incoming.empty():
            await robot.act(IMAGES, STATE)
        again.answer(again.observation(), rows(0))
        await robot.wait_for_first_action(10.0)
        assert robot.latest().epoch == 1
    proxy.close()


async def test_asyncio_sessions_that_do_not_open(server: FakePolicyServer) -> None:
    async with connect_async(server.address) as client:
        unopened = client.control("toy", **SETTINGS)
        with pytest.raises(FailedPrecondition, match="the session is not open: use it inside `async with`"):
            await unopened.act(IMAGES, STATE)
        await unopened.close()
        with pytest.raises(NotFound, match="no model 'toi' is served"):
            await client.control("toi", **SETTINGS).__aenter__()
        server.opens = lambda stream: stream.end(grpc.StatusCode.FAILED_PRECONDITION, "upside down")
        with pytest.raises(FailedPrecondition, match="upside down"):
            await client.control("toy", **SETTINGS).__aenter__()
        server.opens = lambda stream: None
        with pytest.raises(Unavailable, match=r"has not opened the session within 0.2 s"):
            await client.control("toy", **SETTINGS, open_timeout_s=0.2).__aenter__()


def test_what_is_taken_over_is_the_callers_again(server: FakePolicyServer, robot: ControlSession) -> None:
    """The images are copied: the camera may overwrite them at once."""
    image, stream = picture(1), server.stream()
    robot.act(images={"top": image, "wrist": image}, state=np.zeros(3))
    image[:] = 255
    assert set(stream.observation().images["top"].data) == {1}
