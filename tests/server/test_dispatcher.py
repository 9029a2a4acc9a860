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
    EmittedGroup,
    Finished,
    Message,
    OpenSession,
    PeerGone,
    RequestFailed,
    ServingState,
    SessionOpened,
    Submit,
    TensorRef,
)  # fmt: skip
from mstar_rt.server.dispatch import Dispatcher
from mstar_rt.server.request_stream import EMISSION_BYTES, RequestStream
from mstar_rt.transport import InProcessHub, InProcessPlanes

LARGE = np.zeros(100_000, np.uint8)


class OtherSide:
    """Conductor and worker of one model, moved by the test."""

    def __init__(self, arena_bytes: int = 1 << 20, **options: Any) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        server, self.conductor, self.worker = (hub.endpoint(a) for a in ("server", "conductor", "worker/0"))
        self.server_plane, self.worker_plane = planes.plane(server, arena_bytes), planes.plane(self.worker)
        readers = {"frames": ("worker/0",), "a": ("worker/0",), "b": ("worker/0",)}
        self.dispatcher = Dispatcher(
            server, self.server_plane, {"toy": ("worker/0",), "other": ("worker/1",)}, lambda *_: readers, **options
        )
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
    return Finished(request_id, num_emitted, {}, {}, {}, 1.0, ranks=[0])


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


def group(other: OtherSide, request_id: str = "r1", count: int = 3) -> EmittedGroup:
    refs = [other.worker_plane.put("uint8", LARGE.shape, LARGE, ["server"]) for _ in range(count)]
    return EmittedGroup([Emitted(request_id, "walk", i, f"output{i}", (), ref) for i, ref in enumerate(refs)])


async def test_tensors_of_one_step_come_in_order(other: OtherSide) -> None:
    async with other.submit() as stream:
        other.worker.send("server", group(other))
        await other.tell(finished(num_emitted=3))
        assert [emission.name for emission in await stream.collect()] == ["output0", "output1", "output2"]
    assert other.held() == (0, 0)


async def test_tensors_of_one_step_are_let_go_together(other: OtherSide) -> None:
    """Whether nobody asked for them or one of them cannot be read."""
    other.worker.send("server", group(other, "unknown"))
    await settle()
    assert other.held()[1] == 0
    broken = group(other)
    broken.records[1].tensor = TensorRef("uint8", (7,), inline=b"short")
    stream = other.submit()
    other.worker.send("server", broken)
    await settle()
    with pytest.raises(Internal, match="could not be read"):
        await stream.collect()
    assert other.held()[1] == 1, "only the one that the broken reference stands for"


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


async def test_a_lost_worker_on_which_the_request_did_not_run_changes_nothing(other: OtherSide) -> None:
    waiting = other.submit("r1")
    await other.tell(finished("r1", num_emitted=1))
    await other.tell(PeerGone("worker/1"))
    assert not waiting.ended
    await other.emit("r1")
    assert len(await waiting.collect()) == 1


async def test_a_conductor_that_fails_takes_everything_with_it(other: OtherSide) -> None:
    stream = other.submit()
    opening = asyncio.create_task(other.dispatcher.open_session("toy"))
    await settle()
    other.dispatcher.fail_all(Internal("the conductor failed"))
    with pytest.raises(Internal, match="the conductor failed"):
        await stream.collect()
    with pytest.raises(Internal, match="the conductor failed"):
        await opening
    with pytest.raises(Unavailable, match="takes nothing new"):
        other.submit("r2")
    assert other.held() == (0, 0)


async def test_each_input_goes_to_its_readers_and_what_nobody_reads_stays() -> None:
    hub, planes = InProcessHub(), InProcessPlanes()
    conductor = hub.endpoint("conductor")
    workers = [planes.plane(hub.endpoint(f"worker/{rank}")) for rank in range(2)]
    server = hub.endpoint("server")
    plane = planes.plane(server)
    readers = {"both": ("worker/0", "worker/1"), "one": ("worker/1",), "nobody": ()}
    dispatcher = Dispatcher(server, plane, {"toy": ("worker/0", "worker/1")}, lambda model, task: readers)
    await dispatcher.availability.update(ServingState("toy", True))
    inputs = dict.fromkeys((*readers, "unknown"), LARGE)
    stream = dispatcher.submit("toy", "t", inputs, {}, request_id="r", criticality="planning")
    (envelope,) = conductor.receive(0)
    assert isinstance(envelope.message, Submit)
    assert set(envelope.message.inputs) == {"both", "one"}
    assert plane.num_held_segments == 2
    running = asyncio.create_task(dispatcher.run())
    for worker, names in zip(workers, (("both",), ("both", "one")), strict=True):
        for name in names:
            worker.release(envelope.message.inputs[name])
        worker.flush()
        await settle()
        assert plane.num_held_segments == (2 if worker is workers[0] else 0)
    stream.cancel()
    running.cancel()


async def test_inputs_that_no_walk_of_a_session_took_are_freed_at_the_end(other: OtherSide) -> None:
    stream = other.submit(session_id="s1")
    await other.tell(finished())
    await stream.collect()
    assert other.held() == (0, 0)


async def test_a_message_that_cannot_be_handled_fails_its_request(
    other: OtherSide, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = other.submit()

    def broken(_: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(other.dispatcher._tensors, "take", broken)
    await other.emit("r1")
    with pytest.raises(Internal, match="could not handle an answer"):
        await stream.collect()
    assert "ZeroDivisionError" in caplog.text
    assert [type(message) for message in other.told()] == [Submit, CancelRequest]


async def slow_reader(patience_s: float) -> OtherSide:
    """Two emissions may wait, and eight at once."""
    other = OtherSide(max_unread_bytes=2 * (LARGE.nbytes + EMISSION_BYTES))
    other.dispatcher._requests._unread._patience_s = patience_s
    await other.tell(ServingState("toy", True))
    return other


async def test_an_answer_that_nobody_reads_is_bounded() -> None:
    other = await slow_reader(patience_s=3600)
    slow, next_one = other.submit("r1"), other.submit("r2")
    for _ in range(8):
        await other.emit("r1")
    assert not slow.ended
    await other.emit("r1")
    await other.emit("r2")
    assert [type(message) for message in other.told()] == [Submit, Submit, CancelRequest]
    with pytest.raises(ResourceExhausted, match=r"0.863 MB of this answer wait for it, server.max_unread_mb is 0.192:"):
        await slow.collect()
    assert slow.num_unread_bytes == 0
    await other.tell(finished("r2", 1))
    assert len(await next_one.collect()) == 1
    await other.tell(RequestFailed("r1", "CANCELLED", "taken back"))
    assert other.held() == (0, 0)
    other.running.cancel()


async def test_who_reads_nothing_for_a_while_has_less_patience_to_expect() -> None:
    other = await slow_reader(patience_s=0.01)
    stalled, within = other.submit("r1"), other.submit("r2")
    for _ in range(2):
        await other.emit("r1")
        await other.emit("r2")
    await other.emit("r1")
    async with asyncio.timeout(5):
        while not stalled.ended:
            await asyncio.sleep(0)
    assert not within.ended
    with pytest.raises(ResourceExhausted, match="does not read fast enough"):
        await stalled.collect()
    within.cancel()
    other.running.cancel()


async def test_an_answer_that_is_complete_waits_for_its_reader() -> None:
    other = await slow_reader(patience_s=0.0)
    stream = other.submit()
    for _ in range(3):
        other.worker.send(
            "server", Emitted("r1", "walk", 0, "x", (), other.worker_plane.put("uint8", LARGE.shape, LARGE, ["server"]))
        )
    other.conductor.send("server", finished("r1", 3))
    await settle()
    await settle()
    assert len(await stream.collect()) == 3
    other.running.cancel()


async def test_one_emission_may_have_any_size() -> None:
    other = OtherSide(max_unread_bytes=1)
    await other.tell(ServingState("toy", True))
    stream = other.submit()
    await other.emit("r1")
    assert len([await anext(aiter(stream))]) == 1
    stream.cancel()
    other.running.cancel()


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
    (due,) = {round(due_s) for due_s in other.dispatcher._requests._watch.due_in_s()}
    assert due == 6, "one second to the deadline, five of grace"
    await other.tell(finished("r1"))
    taken_back.cancel()
    assert other.dispatcher._requests._watch.due_in_s() == []
    other.running.cancel()


async def test_processes_that_do_not_answer_are_named(other: OtherSide) -> None:
    other.dispatcher._questions.timeout_s = 0.01
    stats = await other.dispatcher.collect_stats()
    assert stats.silent == ["conductor", "worker/0", "worker/1"]
    assert stats.values["server"]["requests_running"] == 0
    rows, silent = await other.dispatcher.collect_traces()
    assert (list(rows), silent) == (["server"], ["worker/0", "worker/1"])
