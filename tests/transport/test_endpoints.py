"""What every control plane promises, checked on each: the hub, and ZeroMQ within and across mesh objects."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable
from mstar_rt.message import AskStats, Drain, Message, PeerGone, encode
from mstar_rt.transport import ControlEndpoint, Envelope, InProcessHub, ZmqMesh
from mstar_rt.transport.endpoint import MAX_DRAIN, EnvelopeOpener, frame_header

DEADLINE_S = 10.0
Opener = Callable[[str], ControlEndpoint]


@pytest.fixture
def base() -> Iterator[Path]:
    """A short directory for sockets."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(params=["hub", "one mesh", "two meshes"])
def open_endpoint(request: pytest.FixtureRequest, base: Path) -> Iterator[Opener]:
    """Opens endpoints by address; with two meshes, "server" and the others live in different ones."""
    if request.param == "hub":
        yield InProcessHub().endpoint
        return
    with ExitStack() as stack:
        mesh = ZmqMesh.create(base)
        stack.callback(mesh.close)
        other = mesh
        if request.param == "two meshes":
            other = ZmqMesh.join(mesh.directory)
            stack.callback(other.close)
        yield lambda address: (mesh if address == "server" else other).endpoint(address)


def receive(endpoint: ControlEndpoint, count: int) -> list[Envelope]:
    """Exactly `count` envelopes, or fail at the deadline."""
    envelopes: list[Envelope] = []
    while len(envelopes) < count:
        arrived = endpoint.receive(DEADLINE_S)
        assert arrived, f"{len(envelopes)} of {count} messages arrived"
        envelopes += arrived
    assert len(envelopes) == count
    return envelopes


def messages(envelopes: list[Envelope]) -> list[Message]:
    return [envelope.message for envelope in envelopes]


def test_messages_arrive_in_order_with_their_sender(open_endpoint: Opener) -> None:
    server, worker, conductor = (open_endpoint(name) for name in ("server", "worker/0", "conductor"))
    for ask_id in range(50):
        server.send("worker/0", AskStats("server", ask_id))
        conductor.send("worker/0", AskStats("conductor", ask_id))
    arrived = receive(worker, 100)
    for sender in ("server", "conductor"):
        own = [envelope.message for envelope in arrived if envelope.sender == sender]
        assert own == [AskStats(sender, ask_id) for ask_id in range(50)]
    worker.send("server", Drain())
    assert messages(receive(server, 1)) == [Drain()]


def test_receive_returns_empty_when_time_is_up(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    assert server.receive(0) == []
    assert server.receive(0.001) == []


def test_messages_wait_for_a_peer_that_comes_later(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    server.send("worker/3", PeerGone("early"))
    assert messages(receive(open_endpoint("worker/3"), 1)) == [PeerGone("early")]


def test_messages_from_before_and_after_a_peer_opens_keep_their_order(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    for ask_id in range(3):
        server.send("conductor", AskStats("server", ask_id))
    conductor = open_endpoint("conductor")
    for ask_id in range(3, 6):
        server.send("conductor", AskStats("server", ask_id))
    assert messages(receive(conductor, 6)) == [AskStats("server", ask_id) for ask_id in range(6)]


async def test_a_peer_on_the_same_loop_and_one_on_a_thread_reach_a_waiting_receiver(open_endpoint: Opener) -> None:
    server, conductor = open_endpoint("server"), open_endpoint("conductor")
    for send in (server.send, lambda *message: asyncio.get_running_loop().run_in_executor(None, server.send, *message)):
        waiting = asyncio.create_task(conductor.receive_async())
        await asyncio.sleep(0)
        sent = send("conductor", Drain())
        assert messages(await asyncio.wait_for(waiting, DEADLINE_S)) == [Drain()]
        if sent is not None:
            await sent


def test_a_peer_that_reopens_is_reached_again(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    for life in range(4):
        worker = open_endpoint("worker/0")
        arrived: list[Envelope] = []
        # What is sent before the old connection is known to be closed is lost with it, later sends are not.
        for _ in range(1000):
            server.send("worker/0", AskStats("server", life))
            arrived = worker.receive(0.01)
            if arrived:
                break
        assert messages(arrived)[0] == AskStats("server", life)
        worker.send("server", AskStats("worker", life))
        assert messages(receive(server, 1)) == [AskStats("worker", life)]
        worker.close()


def test_forget_peer_drops_what_waits_for_the_dead(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    server.send("worker/0", PeerGone("for the dead"))
    server.forget_peer("worker/0")
    server.send("worker/0", PeerGone("for the successor"))
    assert messages(receive(open_endpoint("worker/0"), 1)) == [PeerGone("for the successor")]


def test_an_address_is_opened_once(open_endpoint: Opener) -> None:
    first = open_endpoint("worker/0")
    with pytest.raises(FailedPrecondition, match="worker/0"):
        open_endpoint("worker/0")
    first.close()
    open_endpoint("worker/0")


@pytest.mark.parametrize("address", ["", "Server", "worker/", "worker/x", "../server", "a" * 25, "a b"])
def test_bad_addresses_are_refused(open_endpoint: Opener, address: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an address"):
        open_endpoint(address)
    with pytest.raises(InvalidArgument, match="is not an address"):
        open_endpoint("server").send(address, Drain())


def test_closed_endpoints_are_unavailable(open_endpoint: Opener) -> None:
    server = open_endpoint("server")
    server.close()
    server.close()
    with pytest.raises(Unavailable, match="server is closed"):
        server.send("conductor", Drain())
    with pytest.raises(Unavailable, match="server is closed"):
        server.receive(0)


def test_two_peers_that_burst_at_each_other_both_progress(open_endpoint: Opener) -> None:
    num_messages = 20_000
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    for ask_id in range(num_messages):
        server.send("worker/0", AskStats("server", ask_id))
        worker.send("server", AskStats("worker/0", ask_id))
    for endpoint in (server, worker):
        ids = [envelope.message.ask_id for envelope in receive(endpoint, num_messages)]  # type: ignore[union-attr]
        assert ids == list(range(num_messages))


def test_one_receive_is_bounded(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    for _ in range(3 * MAX_DRAIN):
        server.send("worker/0", Drain())
    num_received = 0
    while num_received < 3 * MAX_DRAIN:
        batch = worker.receive(DEADLINE_S)
        assert 0 < len(batch) <= MAX_DRAIN
        num_received += len(batch)


def test_actions_run_before_each_receive(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    server.before_receive(lambda: server.send("worker/0", Drain()))
    server.receive(0)
    assert messages(receive(worker, 1)) == [Drain()]


def test_a_blocked_receiver_is_woken_from_another_thread(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    arrived: list[Envelope] = []
    thread = threading.Thread(target=lambda: arrived.extend(worker.receive(DEADLINE_S)))
    thread.start()
    server.send("worker/0", Drain())
    thread.join(DEADLINE_S)
    assert messages(arrived) == [Drain()]


def test_endpoints_of_one_process_need_no_socket_and_still_reach_others(base: Path) -> None:
    mesh = ZmqMesh.create(base)
    guest = ZmqMesh.join(mesh.directory)
    server, conductor, worker = mesh.endpoint("server"), mesh.endpoint("conductor"), guest.endpoint("worker/0")
    for local in (server, conductor):
        local.send("worker/0", PeerGone(local.address))
        receive(worker, 1)
        worker.send(local.address, PeerGone(local.address))
        assert messages(receive(local, 1)) == [PeerGone(local.address)]
    shutil.rmtree(mesh.directory)
    server.send("conductor", PeerGone("local"))
    envelope = receive(conductor, 1)[0]
    assert (envelope.sender, envelope.message) == ("server", PeerGone("local"))
    conductor.send("server", Drain())
    assert messages(receive(server, 1)) == [Drain()]
    guest.close()
    mesh.close()


def test_any_thread_may_send(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")

    def send_all(source: str) -> None:
        for ask_id in range(500):
            server.send("worker/0", AskStats(source, ask_id))

    threads = [threading.Thread(target=send_all, args=(f"thread {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    arrived = messages(receive(worker, 2000))
    for thread in threads:
        thread.join()
    for number in range(4):
        ids = [message.ask_id for message in arrived if message.reply_to == f"thread {number}"]  # type: ignore[union-attr]
        assert ids == list(range(500))


async def test_async_echo(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")

    async def echo() -> None:
        while True:
            for envelope in await worker.receive_async():
                worker.send(envelope.sender, envelope.message)

    task = asyncio.create_task(echo())
    for ask_id in range(200):
        server.send("worker/0", AskStats("server", ask_id))
        envelopes = await asyncio.wait_for(server.receive_async(), DEADLINE_S)
        assert messages(envelopes) == [AskStats("server", ask_id)]
    task.cancel()


async def test_cancelled_receive_loses_nothing(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    received: list[int] = []
    for ask_id in range(100):
        waiting = asyncio.create_task(worker.receive_async())
        await asyncio.sleep(0)
        server.send("worker/0", AskStats("server", ask_id))
        if ask_id % 3 == 0:
            waiting.cancel()
        try:
            envelopes = await asyncio.wait_for(waiting, DEADLINE_S)
        except asyncio.CancelledError:
            continue
        received += [envelope.message.ask_id for envelope in envelopes]  # type: ignore[union-attr]
    while len(received) < 100:
        envelopes = await asyncio.wait_for(worker.receive_async(), DEADLINE_S)
        received += [envelope.message.ask_id for envelope in envelopes]  # type: ignore[union-attr]
    assert received == list(range(100))


async def test_messages_that_arrived_for_an_event_loop_reach_a_plain_receive(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    server.send("worker/0", AskStats("server", 0))
    await asyncio.wait_for(worker.receive_async(), DEADLINE_S)
    conductor = open_endpoint("conductor")
    server.send("worker/0", AskStats("server", 1))
    # The round trip over the loop gives the reader of worker/0 its turn while nobody waits there.
    server.send("conductor", Drain())
    await asyncio.wait_for(conductor.receive_async(), DEADLINE_S)
    assert messages(receive(worker, 1)) == [AskStats("server", 1)]


def test_an_endpoint_outlives_an_event_loop(open_endpoint: Opener) -> None:
    server, worker = open_endpoint("server"), open_endpoint("worker/0")
    for ask_id in range(3):
        server.send("worker/0", AskStats("server", ask_id))
        envelopes = asyncio.run(asyncio.wait_for(worker.receive_async(), DEADLINE_S))
        assert messages(envelopes) == [AskStats("server", ask_id)]


def test_frames_of_others_are_counted_and_dropped() -> None:
    hub = InProcessHub()
    server, worker = hub.endpoint("server"), hub.endpoint("worker/0")
    header = frame_header("worker/0")
    for frame in (
        b"",
        b"\xff",
        b"\x04ab 1",
        b"\x03a b",
        header,
        header + b"garbage",
        b"\x07UPPER 1" + encode(Drain()),
    ):
        hub.deliver("server", "worker/0", frame)
    worker.send("server", Drain())
    assert messages(receive(server, 1)) == [Drain()]
    assert server.num_rejected == 7


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda body: frame_header("worker/0") + body))
def test_no_frame_stops_a_receiver(frame: bytes) -> None:
    opener = EnvelopeOpener("server")
    envelopes = opener.open([frame, frame_header("worker/0") + encode(Drain())])
    assert envelopes[-1].message == Drain()
    assert len(envelopes) + opener.num_rejected == 2


async def test_closing_ends_a_waiting_receive(open_endpoint: Opener) -> None:
    worker = open_endpoint("worker/0")
    waiting = asyncio.create_task(worker.receive_async())
    await asyncio.sleep(0)
    worker.close()
    with pytest.raises(Unavailable, match="worker/0 was closed"):
        await asyncio.wait_for(waiting, DEADLINE_S)
