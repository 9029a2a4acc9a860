"""The dispatcher alone: ends, strays, sessions, dead peers. The other side is played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.errors import DeadlineExceeded, Internal, ResourceExhausted, SharedMemoryExhausted, Unavailable
from mstar_rt.message import (
    CancelRequest,
    CloseSession,
    Emitted,
    Finished,
    Message,
    OpenSession,
    PeerGone,
    RequestFailed,
    ServingState,
    SessionOpened,
    Submit,
)  # fmt: skip
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.transport import InProcessHub, InProcessPlanes

LARGE = np.zeros(100_000, np.uint8)


class OtherSide:
    """Conductor and worker of one model, moved by the test."""

    def __init__(self, arena_bytes: int = 1 << 20, **options: Any) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        server, self.conductor, self.worker = (hub.endpoint(a) for a in ("server", "conductor", "worker/0"))
        self.server_plane, self.worker_plane = planes.plane(server, arena_bytes), planes.plane(self.worker)
        self.dispatcher = Dispatcher(server, self.server_plane, {"toy": ("worker/0",)}, **options)
        self.running = asyncio.create_task(self.dispatcher.run())

    async def tell(self, message: Message) -> None:
        self.conductor.send("server", message)
        await settle()

    def submit(self, request_id: str = "r1", **options: Any) -> RequestStream:
        return self.dispatcher.submit(
            "toy", "encode", {"frames": LARGE}, {"floats": (1.0, 2.0)}, request_id=request_id, criticality="planning",
            **options,
        )  # fmt: skip

    def told(self) -> list[Message]:
        return [envelope.message for envelope in self.conductor.receive(0)]

    async def emit(self, request_id: str) -> None:
        ref = self.worker_plane.put("uint8", LARGE.shape, LARGE, ["server"])
        self.worker.send("server", Emitted(request_id, "walk", 0, "latents", (), ref))
        await settle()

    def held(self) -> tuple[int, int]:
        """Blocks that the server's and the worker's arena still lend."""
        for envelope in self.worker.receive(0):
            self.worker_plane.on_release(envelope.message)
        return self.server_plane.num_held_segments, self.worker_plane.num_held_segments


async def settle() -> None:
    """Let the dispatcher take in what was sent; nothing here waits for time."""
    for _ in range(10):
        await asyncio.sleep(0)


def finished(request_id: str = "r1", num_emitted: int = 0) -> Finished:
    return Finished(request_id, num_emitted, {}, {}, {}, 1.0)


@pytest.fixture
async def other() -> AsyncIterator[OtherSide]:
    side = OtherSide()
    await side.tell(ServingState("toy", True))
    yield side
    side.running.cancel()


async def test_a_request_carries_everything(other: OtherSide) -> None:
    async with other.submit(deadline_ns=5, session_id="s1"):
        (submit,) = other.told()
        assert isinstance(submit, Submit)
        assert (submit.model, submit.task, submit.session_id, submit.deadline_ns) == (
            "toy",
            "encode",
            "s1",
            5,
        )
        assert submit.params == {"floats": [1.0, 2.0]}
        assert submit.reply_to == "server"
        np.testing.assert_array_equal(other.worker_plane.view(submit.inputs["frames"]), LARGE)


async def test_a_refused_request_leaves_no_input_behind(other: OtherSide) -> None:
    """The worker was never told of it, so nobody else would let go."""
    stream = other.submit()
    assert other.held() == (1, 0)
    await other.tell(RequestFailed("r1", "RESOURCE_EXHAUSTED", "too many"))
    with pytest.raises(ResourceExhausted, match="too many"):
        await stream.collect()
    assert other.held() == (0, 0)


async def test_emissions_of_a_request_that_was_taken_back_are_let_go(other: OtherSide) -> None:
    async with other.submit():
        await other.emit("r1")
    assert [type(message) for message in other.told()] == [Submit, CancelRequest]
    await other.emit("r1")
    await other.tell(RequestFailed("r1", "CANCELLED", "taken back"))
    assert other.held() == (0, 0)
    assert other.dispatcher.num_running == 0


async def test_a_request_that_ended_is_not_cancelled(other: OtherSide) -> None:
    async with other.submit() as stream:
        await other.tell(finished())
        assert await stream.collect() == []
    assert [type(message) for message in other.told()] == [Submit]


async def test_what_was_emitted_before_a_failure_is_given_first(other: OtherSide) -> None:
    stream = other.submit()
    await other.emit("r1")
    await other.tell(RequestFailed("r1", "INTERNAL", "broken"))
    emissions = aiter(stream)
    assert (await anext(emissions)).name == "latents"
    with pytest.raises(Internal, match="broken"):
        await anext(emissions)


async def test_a_second_end_changes_nothing(other: OtherSide, caplog: pytest.LogCaptureFixture) -> None:
    stream = other.submit()
    await other.tell(finished())
    await other.tell(RequestFailed("r1", "INTERNAL", "broken"))
    assert await stream.collect() == []
    assert "a second end came for request r1" in caplog.text


async def test_no_room_for_the_inputs_is_said_and_holds_nothing() -> None:
    other = OtherSide(arena_bytes=150_000)
    await other.tell(ServingState("toy", True))
    with pytest.raises(SharedMemoryExhausted):
        other.dispatcher.submit("toy", "t", {"a": LARGE, "b": LARGE}, {}, request_id="r1", criticality="planning")
    assert other.held() == (0, 0)
    assert other.told() == []
    other.submit("r2")
    other.running.cancel()


async def test_a_lost_worker_fails_what_waits_for_its_emissions(other: OtherSide) -> None:
    waiting, running = other.submit("r1"), other.submit("r2")
    await other.tell(finished("r1", num_emitted=1))
    await other.tell(PeerGone("worker/0"))
    with pytest.raises(Unavailable, match="worker/0 was lost"):
        await waiting.collect()
    assert not running.ended, "the conductor decides about requests that have no end yet"
    running.cancel()


async def test_a_lost_conductor_fails_everything(other: OtherSide) -> None:
    stream = other.submit()
    opening = asyncio.create_task(other.dispatcher.open_session("toy"))
    await settle()
    await other.tell(PeerGone("conductor"))
    with pytest.raises(Unavailable, match="the conductor was lost"):
        await stream.collect()
    with pytest.raises(Unavailable, match="the conductor was lost"):
        await opening


async def test_the_end_of_the_receive_loop_fails_everything(other: OtherSide) -> None:
    stream = other.submit()
    other.running.cancel()
    await settle()
    with pytest.raises(Unavailable, match="shutting down"):
        await stream.collect()


async def test_sessions_open_and_close_once(other: OtherSide) -> None:
    opening = asyncio.create_task(other.dispatcher.open_session("toy"))
    await settle()
    (opened,) = other.told()
    assert isinstance(opened, OpenSession)
    await other.tell(SessionOpened(opened.session_id))
    assert await opening == opened.session_id
    other.dispatcher.close_session(opened.session_id)
    other.dispatcher.close_session(opened.session_id)
    assert [type(message) for message in other.told()] == [CloseSession]
    assert other.dispatcher.num_sessions == 0


async def test_a_session_whose_opening_is_given_up_is_closed(other: OtherSide) -> None:
    opening = asyncio.create_task(other.dispatcher.open_session("toy"))
    await settle()
    opening.cancel()
    await settle()
    assert [type(message) for message in other.told()] == [OpenSession, CloseSession]
    assert other.dispatcher.num_sessions == 0


async def test_an_emission_that_cannot_be_read_fails_its_request_and_nothing_else(other: OtherSide) -> None:
    from mstar_rt.message import TensorRef

    stream, next_one = other.submit("r1"), other.submit("r2")
    other.worker.send("server", Emitted("r1", "walk", 0, "latents", (), TensorRef("uint8", (9,), inline=b"1")))
    await settle()
    with pytest.raises(Internal, match="an answer could not be read"):
        await stream.collect()
    assert [type(message) for message in other.told()] == [Submit, Submit, CancelRequest]
    await other.tell(RequestFailed("r1", "CANCELLED", "taken back"))
    await other.tell(finished("r2"))
    assert await next_one.collect() == []
    assert other.held() == (0, 0)


async def overdue() -> OtherSide:
    """A dispatcher whose clock stands at 1 s and that allows no overrun."""
    other = OtherSide(clock=ManualClock(10**9), answer_grace_s=0.0)
    await other.tell(ServingState("toy", True))
    return other


@pytest.mark.parametrize("finishes", [False, True])
async def test_a_request_ends_even_if_its_worker_hangs(finishes: bool, caplog: pytest.LogCaptureFixture) -> None:
    other = await overdue()
    stream = other.submit(deadline_ns=10**9 - 1)
    if finishes:
        other.conductor.send("server", finished(num_emitted=1))
    async with stream:
        with pytest.raises(DeadlineExceeded, match=r"no answer 0 s after the deadline .*; the worker may be stuck"):
            await asyncio.wait_for(stream.collect(), 5)
    await other.tell(RequestFailed("r1", "CANCELLED", "taken back"))
    await other.emit("r1")
    assert [type(message) for message in other.told()] in ([Submit, CancelRequest], [Submit])
    assert other.dispatcher.num_running == 0
    assert other.held() == (0, 0)
    if not finishes:
        assert caplog.text == "", "the end that comes late is expected"
    other.running.cancel()


async def test_the_wait_for_an_answer_ends_with_the_request() -> None:
    other = OtherSide(clock=ManualClock(10**9))
    await other.tell(ServingState("toy", True))
    other.submit("r1", deadline_ns=2 * 10**9)
    taken_back = other.submit("r2", deadline_ns=2 * 10**9)
    (due,) = {round(due_s) for due_s in other.dispatcher._watch.due_in_s()}
    assert due == 6, "one second to the deadline, five of grace"
    await other.tell(finished("r1"))
    taken_back.cancel()
    assert other.dispatcher._watch.due_in_s() == []
    other.running.cancel()


async def test_processes_that_do_not_answer_are_named(other: OtherSide) -> None:
    other.dispatcher.stats._timeout_s = 0.01
    values, silent = await other.dispatcher.collect_stats()
    assert silent == ["conductor", "worker/0"]
    assert values["server"]["requests_running"] == 0
