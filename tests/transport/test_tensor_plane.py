"""What every tensor plane promises, checked in process memory and in shared memory."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mstar_rt.errors import FailedPrecondition, InvalidArgument, SharedMemoryExhausted, Unavailable
from mstar_rt.message import Emitted, Release, TensorRef, decode, encode
from mstar_rt.transport import MAX_INLINE_BYTES, ControlEndpoint, InProcessHub, InProcessPlanes, TensorPlane
from mstar_rt.transport.arena import HeapArena, MemfdArena
from mstar_rt.transport.tensor_plane import RELEASE_BATCH, RELEASE_BATCH_BYTES, ArenaPlane, shared_memory_plane

ARENA_BYTES = 4 << 20
LARGE = np.arange(50_000, dtype=np.float32).reshape(100, 500)


class Actor:
    """An address with both planes, that serves the releases it receives."""

    def __init__(self, endpoint: ControlEndpoint, plane: TensorPlane) -> None:
        self.endpoint = endpoint
        self.plane = plane

    def serve_releases(self) -> int:
        """Handles what has arrived; returns the number of Release records."""
        envelopes = self.endpoint.receive(0)
        for envelope in envelopes:
            assert isinstance(envelope.message, Release)
            self.plane.on_release(envelope.message)
        return len(envelopes)


Opener = Callable[[str], Actor]


@pytest.fixture(params=["process memory", "shared memory"])
def actor(request: pytest.FixtureRequest) -> Iterator[Opener]:
    hub, planes, opened = InProcessHub(), InProcessPlanes(), list[Actor]()

    def open_actor(address: str) -> Actor:
        endpoint = hub.endpoint(address)
        if request.param == "process memory":
            plane: TensorPlane = planes.plane(endpoint, ARENA_BYTES)
        else:
            plane = shared_memory_plane(endpoint, "test", ARENA_BYTES)
        opened.append(Actor(endpoint, plane))
        return opened[-1]

    yield open_actor
    for each in opened:
        each.plane.close()


def on_the_wire(ref: TensorRef) -> TensorRef:
    message = decode(encode(Emitted("r", "w", 0, "x", (), ref)))
    assert isinstance(message, Emitted)
    return message.tensor


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (40, 5, 250)], ids=str)
def test_tensors_arrive_equal(actor: Opener, dtype: str, shape: tuple[int, ...]) -> None:
    server, worker = actor("server"), actor("worker/0")
    data = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    ref = on_the_wire(server.plane.put(dtype, shape, data, ["worker/0"]))
    seen = worker.plane.view(ref)
    assert seen.dtype == data.dtype
    np.testing.assert_array_equal(seen, data)
    worker.plane.release(ref)
    worker.plane.flush()
    server.serve_releases()
    assert server.plane.num_held_bytes == 0


def test_small_tensors_travel_inside_the_message(actor: Opener) -> None:
    server = actor("server")
    at_limit = server.plane.put("uint8", [MAX_INLINE_BYTES], bytes(MAX_INLINE_BYTES), ["worker/0"])
    assert at_limit.inline is not None
    assert at_limit.segment is None
    assert server.plane.num_held_segments == 0
    over = server.plane.put("uint8", [MAX_INLINE_BYTES + 1], bytes(MAX_INLINE_BYTES + 1), ["worker/0"])
    assert over.inline is None
    assert over.segment is not None
    assert server.plane.num_held_segments == 1


def test_bfloat16_is_seen_as_its_bits_and_keeps_its_name(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    bits = np.full((64, 400), 0x3F80, dtype=np.uint16)
    ref = on_the_wire(server.plane.put("bfloat16", bits.shape, bits, ["worker/0"]))
    assert ref.dtype == "bfloat16"
    assert worker.plane.view(ref).dtype == np.uint16
    np.testing.assert_array_equal(worker.plane.view(ref), bits)


def test_views_are_read_only_and_share_memory(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0", "server"])
    for plane in (server.plane, worker.plane):
        view = plane.view(ref)
        assert not view.flags.writeable
        assert view.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 1
    assert np.shares_memory(worker.plane.view(ref), worker.plane.view(ref))


def test_a_block_is_freed_when_every_consumer_has_released(actor: Opener) -> None:
    server, first, second = actor("server"), actor("worker/0"), actor("worker/1")
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0", "worker/1", "server"])
    for consumer in (first, second):
        consumer.plane.release(ref)
        consumer.plane.flush()
        server.serve_releases()
        assert server.plane.num_held_bytes >= LARGE.nbytes
    server.plane.release(ref)
    assert (server.plane.num_held_bytes, server.plane.num_held_segments) == (0, 0)


def test_releases_travel_in_batches_and_before_each_receive(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    large = np.zeros(MAX_INLINE_BYTES + 1, np.uint8)
    refs = [server.plane.put("uint8", large.shape, large, ["worker/0"]) for _ in range(RELEASE_BATCH + 3)]
    for ref in refs:
        worker.plane.release(ref)
    assert server.serve_releases() == 1
    assert server.plane.num_held_segments == 3
    worker.endpoint.receive(0)
    assert server.serve_releases() == 1
    assert server.plane.num_held_segments == 0


class Delayed:
    """A reader whose releases wait for 5 ms of a clock that the test moves, and the owner of what it reads."""

    def __init__(self) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        self.now_s = 10.0
        owner, reader = hub.endpoint("server"), hub.endpoint("worker/0")
        self.owner = Actor(owner, planes.plane(owner, 64 << 20))
        plane = ArenaPlane(reader, HeapArena(4096, {}), planes._find, release_delay_s=0.005, now_s=lambda: self.now_s)
        self.reader = Actor(reader, plane)

    def read(self, num_bytes: int = MAX_INLINE_BYTES + 1) -> None:
        data = np.zeros(num_bytes, np.uint8)
        self.reader.plane.release(self.owner.plane.put("uint8", data.shape, data, ["worker/0"]))

    def num_messages(self) -> int:
        return self.owner.serve_releases()


def test_releases_that_may_wait_leave_together_when_their_time_is_up() -> None:
    rig = Delayed()
    for _ in range(3):
        rig.read()
        rig.reader.endpoint.receive(0)
        rig.now_s += 0.001
    assert rig.num_messages() == 0
    rig.now_s += 0.003
    rig.reader.endpoint.receive(0)
    assert rig.num_messages() == 1
    assert rig.owner.plane.num_held_bytes == 0
    rig.read()
    rig.reader.plane.flush()
    assert rig.num_messages() == 1, "whoever is about to wait flushes"


def test_releases_of_much_memory_do_not_wait() -> None:
    rig = Delayed()
    rig.read()
    rig.read(RELEASE_BATCH_BYTES)
    assert rig.num_messages() == 1
    assert rig.owner.plane.num_held_bytes == 0


def test_releases_that_wait_do_not_fill_a_small_arena() -> None:
    """Blocks of 300 kB in an arena of 1 MB, each released as soon as it is read."""
    hub, planes = InProcessHub(), InProcessPlanes()
    owner, reader = hub.endpoint("worker/0"), hub.endpoint("server")
    writer = Actor(owner, planes.plane(owner, 1 << 20))
    plane = ArenaPlane(reader, HeapArena(4096, {}), planes._find, release_delay_s=0.02, now_s=lambda: 10.0)
    data = np.zeros(300_000, np.uint8)
    for _ in range(10):
        ref = writer.plane.put("uint8", data.shape, data, ["server"])
        plane.content(ref)
        plane.release(ref)
        writer.serve_releases()
    assert writer.plane.num_held_bytes == 0


async def test_an_event_loop_sends_releases_that_wait_by_itself() -> None:
    rig = Delayed()
    rig.read()
    waiting = asyncio.create_task(rig.reader.endpoint.receive_async())
    (envelope,) = await asyncio.wait_for(rig.owner.endpoint.receive_async(), 10)
    assert isinstance(envelope.message, Release)
    waiting.cancel()


async def test_a_release_leaves_while_the_receiver_of_an_event_loop_waits(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    refs = [server.plane.put("float32", LARGE.shape, LARGE, ["worker/0"]) for _ in range(3)]
    waiting = asyncio.create_task(worker.endpoint.receive_async())
    await asyncio.sleep(0)
    for ref in refs:
        worker.plane.release(ref)
    envelopes = await asyncio.wait_for(server.endpoint.receive_async(), 10)
    assert [type(envelope.message) for envelope in envelopes] == [Release], "three releases, one message"
    waiting.cancel()


def test_a_dead_consumer_holds_nothing(actor: Opener) -> None:
    server, first = actor("server"), actor("worker/0")
    shared = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0", "worker/1"])
    server.plane.put("float32", LARGE.shape, LARGE, ["worker/1"])
    server.plane.forget_peer("worker/1")
    assert server.plane.num_held_segments == 1
    # A release of the dead one that was under way changes nothing any more.
    assert shared.segment is not None
    server.plane.on_release(Release("worker/1", [shared.segment.block_id]))
    assert server.plane.num_held_segments == 1
    first.plane.release(shared)
    first.plane.flush()
    server.serve_releases()
    assert server.plane.num_held_segments == 0


def test_a_release_for_a_predecessor_frees_nothing_of_its_successor(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    old = [worker.plane.put("float32", LARGE.shape, LARGE, ["server"]) for _ in range(3)]
    worker.plane.close()
    worker.endpoint.close()
    successor = actor("worker/0")
    for _ in range(3):
        successor.plane.put("float32", LARGE.shape, LARGE, ["server"])
    for ref in old:
        server.plane.release(ref)
    server.plane.flush()
    successor.serve_releases()
    assert successor.plane.num_held_segments == 3


def test_exhaustion_is_an_error_that_passes(actor: Opener) -> None:
    server = actor("server")
    refs = [server.plane.put("float32", LARGE.shape, LARGE, ["server"]) for _ in range(20)]
    with pytest.raises(SharedMemoryExhausted, match=r"no room for 200000 bytes.*of 4194240 bytes are held in 20"):
        server.plane.put("float32", LARGE.shape, LARGE, ["server"])
    server.plane.release(refs[7])
    again = server.plane.put("float32", LARGE.shape, LARGE, ["server"])
    np.testing.assert_array_equal(server.plane.view(again), LARGE)


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "part"),
    [
        ("float33", (4,), bytes(16), "did you mean 'float32'"),
        ("float32", (-1,), bytes(4), "not a tensor shape"),
        ("float32", (1,) * 17, bytes(4), "at most 16"),
        ("float32", (4,), bytes(15), "takes 16 bytes, the data has 15"),
        ("float32", (4,), np.zeros(4, np.int32), "array of int32"),
        ("float32", (2, 2), np.zeros(4, np.float32), "must agree"),
        ("float32", (4, 4), np.zeros((4, 4), np.float32).T[:, :2], "must agree"),
        ("float32", (3, 4), np.zeros((4, 3), np.float32).T, "C-contiguous"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    actor: Opener, dtype: str, shape: tuple[int, ...], data: bytes, part: str
) -> None:
    server = actor("server")
    with pytest.raises(InvalidArgument, match=part):
        server.plane.put(dtype, shape, data, ["server"])
    assert server.plane.num_held_bytes == 0


def changed(ref: TensorRef, **fields: Any) -> TensorRef:
    assert ref.segment is not None
    return TensorRef(ref.dtype, ref.shape, segment=msgspec.structs.replace(ref.segment, **fields))


def test_references_that_contradict_themselves_are_refused(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0"])
    wrong = [
        TensorRef("float32", (2,)),
        TensorRef("float32", (2,), inline=b"1234567"),
        TensorRef("float16", LARGE.shape, segment=ref.segment),
        TensorRef("nonsense", LARGE.shape, segment=ref.segment),
        changed(ref, offset=ARENA_BYTES - 64),
        changed(ref, offset=-64),
        changed(ref, offset=65),
        changed(ref, num_bytes=LARGE.nbytes - 4),
    ]
    for bad in wrong:
        with pytest.raises(InvalidArgument):
            worker.plane.view(bad)
    np.testing.assert_array_equal(worker.plane.view(ref), LARGE)


def test_what_is_not_the_owners_arena_is_unavailable(actor: Opener) -> None:
    server, worker = actor("server"), actor("worker/0")
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0"])
    read_end, write_end = os.pipe()
    other = os.memfd_create("other")
    os.ftruncate(other, ARENA_BYTES)
    try:
        for bad in (
            changed(ref, arena_id=secrets.token_bytes(16)),
            changed(ref, arena_id=b"short"),
            changed(ref, fd=9999),
            changed(ref, fd=-1, arena_id=secrets.token_bytes(16)),
            changed(ref, owner_pid=2**22 + 1),
            changed(ref, fd=other),
            changed(ref, fd=read_end),
        ):
            with pytest.raises(Unavailable, match="server"):
                worker.plane.view(bad)
    finally:
        for fd in (read_end, write_end, other):
            os.close(fd)


def test_a_closed_owner_is_unavailable_to_those_who_come_late(actor: Opener) -> None:
    server, early, late = actor("server"), actor("worker/0"), actor("worker/1")
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0", "worker/1"])
    view = early.plane.view(ref)
    server.plane.close()
    server.plane.close()
    with pytest.raises(Unavailable, match="server"):
        late.plane.view(ref)
    with pytest.raises(Unavailable, match="server"):
        server.plane.put("float32", LARGE.shape, LARGE, ["worker/0"])
    np.testing.assert_array_equal(view, LARGE)


def test_forgetting_an_owner_lets_its_memory_go() -> None:
    hub = InProcessHub()
    name = f"test-{secrets.token_hex(4)}"
    server = shared_memory_plane(hub.endpoint("server"), name, ARENA_BYTES)
    worker = shared_memory_plane(hub.endpoint("worker/0"), "reader", ARENA_BYTES)
    ref = server.put("float32", LARGE.shape, LARGE, ["worker/0"])
    view = worker.view(ref)
    assert num_maps_of(name) == 2
    server.close()
    assert num_maps_of(name) == 1
    worker.forget_peer("server")
    assert num_maps_of(name) == 1, "the view must stay valid"
    np.testing.assert_array_equal(view, LARGE)
    del view
    assert num_maps_of(name) == 0


def num_maps_of(name: str) -> int:
    with open("/proc/self/maps") as maps:
        return sum(name in line for line in maps)


def test_an_arena_that_the_system_refuses_is_named() -> None:
    with pytest.raises(FailedPrecondition, match="cannot be made"):
        MemfdArena("test", 1 << 62)


ADDRESSES = ("server", "worker/0", "worker/1")


class PlaneMachine(RuleBasedStateMachine):
    """Three actors put, read and release in any order: values stay intact until released, and nothing
    leaks.
    """

    tensors = Bundle("tensors")

    def __init__(self) -> None:
        super().__init__()
        hub, planes = InProcessHub(), InProcessPlanes()
        self.actors = {}
        for address in ADDRESSES:
            endpoint = hub.endpoint(address)
            self.actors[address] = Actor(endpoint, planes.plane(endpoint, 8 * 20_000))
        self.num_puts = 0
        self.unread: list[tuple[str, TensorRef, int]] = []

    @rule(
        target=tensors,
        owner=st.sampled_from(ADDRESSES),
        consumers=st.sets(st.sampled_from(ADDRESSES), min_size=1).map(sorted),
        num_bytes=st.integers(MAX_INLINE_BYTES + 1, 40_000),
    )
    def put(self, owner: str, consumers: list[str], num_bytes: int) -> object:
        value = self.num_puts = (self.num_puts + 1) % 256
        data = np.full(num_bytes, value, np.uint8)
        try:
            ref = self.actors[owner].plane.put("uint8", data.shape, data, consumers)
        except SharedMemoryExhausted:
            return multiple()
        held = [(consumer, on_the_wire(ref), value) for consumer in consumers]
        self.unread += held
        return multiple(*held)

    @rule(held=consumes(tensors))
    def read_and_release(self, held: tuple[str, TensorRef, int]) -> None:
        self.unread.remove(held)
        consumer, ref, value = held
        plane = self.actors[consumer].plane
        view = plane.view(ref)
        assert view.min() == view.max() == value
        plane.release(ref)

    @rule(address=st.sampled_from(ADDRESSES))
    def serve(self, address: str) -> None:
        self.actors[address].serve_releases()

    @invariant()
    def held_bytes_and_segments_agree(self) -> None:
        for actor in self.actors.values():
            assert (actor.plane.num_held_bytes == 0) == (actor.plane.num_held_segments == 0)

    def teardown(self) -> None:
        for held in list(self.unread):
            self.read_and_release(held)
        for actor in self.actors.values():
            actor.plane.flush()
        for actor in self.actors.values():
            actor.serve_releases()
        assert all(actor.plane.num_held_bytes == 0 for actor in self.actors.values())


PlaneMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPlane = PlaneMachine.TestCase
