"""Images in a robot's memory: the same chunks as from bytes; what does not hold is refused in a sentence, and nothing of
the server's depends on what the robot does with its memory."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from control_stream import Kind, Robot, actions_of, image, policy_runtime, schema
from toy_policy import SIZE
from toy_runtime import ToyRuntime

from mstar_rt.client.control.robot_schema import CameraSchema
from mstar_rt.client.control.shared_slots import SharedSlots
from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.server.control import region
from mstar_rt.server.control.region import SharedRegion, map_region

LOOPBACK = "ipv4:127.0.0.1:5"
CAMERAS = (CameraSchema("top", SIZE, SIZE), CameraSchema("wrist", SIZE, SIZE))
IMAGE_BYTES = SIZE * SIZE * 3


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with policy_runtime() as running:
        yield running


@pytest.fixture
def slots() -> Iterator[SharedSlots]:
    made = SharedSlots(CAMERAS)
    yield made
    made.close()


def shared_image(slots: SharedSlots, seq: int, value: int, camera: str = "top") -> tensor_pb2.Image:
    message = image(value)
    slot = slots.take(seq)
    assert slot is not None
    slot.fill(message, camera, np.full((SIZE, SIZE, 3), value, np.uint8))
    return message


def opened(channel: grpc.Channel, offer: wire.SharedMemoryOffer) -> tuple[Robot, wire.ControlOpened]:
    robot = Robot(channel, epoch=0, shared_memory=offer)
    return robot, robot.hear("opened")


def test_chunks_are_those_of_bytes(channel: grpc.Channel, slots: SharedSlots) -> None:
    robot, answer = opened(channel, slots.offer)
    assert answer.shared_memory
    assert not answer.HasField("shared_memory_refused")
    for seq in range(1, 40, 2):
        robot.observe(seq, seq, images={"top": shared_image(slots, seq, seq)})
        by_reference = actions_of(robot.hear("chunk"))
        slots.give_back(seq)
        robot.observe(seq + 1, seq)
        np.testing.assert_array_equal(by_reference, actions_of(robot.hear("chunk")))
    robot.close()


def test_a_state_may_be_in_memory(channel: grpc.Channel, slots: SharedSlots) -> None:
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    picture.reshape(-1)[:12] = np.frombuffer(np.array([1, 2, 3], np.float32).tobytes(), np.uint8)
    message = image()
    slots.take(1).fill(message, "top", picture)  # type: ignore[union-attr]
    ref = message.shared
    ref.num_bytes = 12
    robot, _ = opened(channel, slots.offer)
    robot.observe(1, state=tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[3], shared=ref))
    np.testing.assert_array_equal(actions_of(robot.hear("chunk"))[0], [1, 2])
    robot.close()


def test_only_what_fits_is_copied_out_of_memory(channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to all of a large region would hold up the event loop, and with it all robots."""
    slots = SharedSlots([CameraSchema("huge", 1024, 1024)])
    try:
        message = tensor_pb2.Image()
        slots.take(1).fill(message, "huge", np.zeros((1024, 1024, 3), np.uint8))  # type: ignore[union-attr]
        message.encoding = tensor_pb2.Image.ENCODING_RAW
        message.height, message.width, message.channels = 1024, 1024, 3
        robot, answer = opened(channel, slots.offer)
        assert answer.shared_memory
        with monkeypatch.context() as patched:
            patched.setattr(SharedRegion, "view", lambda *_: pytest.fail("it is read"))
            robot.observe(1, images={"top": message})
            told = robot.hear_event(Kind.KIND_FAILED, 1).detail.message
            assert told.startswith("the image of camera 'top' is 1024 x 1024, expected 16 x 16 (height x width)")
            state = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[3 << 18], shared=message.shared)
            robot.observe(2, state=state)
            assert "no state is larger" in robot.hear_event(Kind.KIND_FAILED, 2).detail.message
        robot.close()
    finally:
        slots.close()


def changed(slots: SharedSlots, **fields: Any) -> tensor_pb2.Image:
    message = shared_image(slots, 1, 0)
    for name, value in fields.items():
        setattr(message.shared if name in ("region", "offset", "num_bytes", "generation") else message, name, value)
    return message


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"region": "other"}, "'top' refers to shared memory 'other', expected 'robot-"),
        ({"offset": 1 << 40}, "refers to 768 bytes at 1099511627776 of shared memory, expected"),
        ({"offset": 2**64 - 8}, "expected a multiple of 8, from 24, and an end within its"),
        ({"offset": 16}, "expected a multiple of 8, from 24"),
        ({"offset": 129}, "expected a multiple of 8"),
        ({"num_bytes": 1 << 30}, "and an end within its"),
        ({"num_bytes": IMAGE_BYTES - 1}, "raw image 'top' has 767 bytes, expected 768"),
        ({"generation": 99}, "'top' was overwritten in shared memory before it could be read: it is of generation 1"),
        ({"generation": 0}, "'top' was overwritten in shared memory"),
        (
            {"encoding": tensor_pb2.Image.ENCODING_PNG},
            "image 'top' is in shared memory, where only raw images are taken",
        ),
        ({"height": 0}, "raw image 'top' needs height, width and channels"),
    ],
)
def test_a_reference_that_does_not_hold_fails_alone(
    channel: grpc.Channel, slots: SharedSlots, fields: dict[str, Any], sentence: str
) -> None:
    robot, _ = opened(channel, slots.offer)
    robot.observe(1, images={"top": changed(slots, **fields)})
    assert sentence in robot.hear_event(Kind.KIND_FAILED, 1).detail.message
    robot.observe(2, 5, images={"top": shared_image(slots, 2, 5)})
    assert robot.hear("chunk").answers_seq == 2
    robot.close()


def test_a_reference_without_an_agreement_is_refused(channel: grpc.Channel, slots: SharedSlots) -> None:
    robot = Robot(channel, epoch=0)
    assert not robot.hear("opened").shared_memory
    robot.observe(1, images={"top": shared_image(slots, 1, 1)})
    detail = robot.hear_event(Kind.KIND_FAILED, 1).detail
    assert detail.code == "UNIMPLEMENTED"
    assert "which was not agreed on" in detail.message
    robot.close()


def test_a_picture_that_is_overwritten_while_it_is_copied_is_never_used(slots: SharedSlots) -> None:
    ref = shared_image(slots, 1, 1).shared
    mapped = map_region(slots.offer, LOOPBACK)
    view = mapped.view(ref, "top")
    assert bytes(view) == bytes([1]) * IMAGE_BYTES
    slots.give_back(1)
    shared_image(slots, 2, 2)
    assert bytes(view) == bytes([2]) * IMAGE_BYTES, "the slot was used again"
    with pytest.raises(FailedPrecondition, match="it is of generation 2, expected 1"):
        mapped.check(ref, "top")
    with pytest.raises(TypeError):
        view[0] = 1
    view.release()
    mapped.close()
    mapped.close()


# ---- offers


@contextmanager
def file_of(content: bytes, num_bytes: int = 4096, seals: int = 0) -> Iterator[int]:
    fd = os.memfd_create("any", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    yield fd
    os.close(fd)


def offer_of(fd: int, token: bytes, num_bytes: int = 4096, pid: int | None = None) -> wire.SharedMemoryOffer:
    return wire.SharedMemoryOffer(region="r", pid=pid or os.getpid(), fd=fd, num_bytes=num_bytes, token=token)


TOKEN = secrets.token_bytes(16)
SHRINK = fcntl.F_SEAL_SHRINK


def test_an_offer_that_holds() -> None:
    with file_of(TOKEN, seals=SHRINK) as fd:
        map_region(offer_of(fd, TOKEN), LOOPBACK).close()


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.7:5", "ipv6:[2001:db8::1]:5", "ipv4:192.168.0.2:127", ""])
def test_another_machine_offers_nothing(peer: str, slots: SharedSlots) -> None:
    with pytest.raises(FailedPrecondition, match="expected a client on the server's machine"):
        map_region(slots.offer, peer)


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:5", "ipv6:[::1]:5", "ipv6:%5B::1%5D:5", "unix:/tmp/x"])
def test_this_machine_does(peer: str, slots: SharedSlots) -> None:
    map_region(slots.offer, peer).close()


def test_a_file_that_can_shrink_is_not_mapped() -> None:
    with (
        file_of(TOKEN) as fd,
        pytest.raises(FailedPrecondition, match="can shrink, expected a memory file with the seal"),
    ):
        map_region(offer_of(fd, TOKEN), LOOPBACK)


def test_a_file_on_disk_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(TOKEN + bytes(4080))
    with open(tmp_path / "x", "rb") as file, pytest.raises(FailedPrecondition, match="can shrink"):
        map_region(offer_of(file.fileno(), TOKEN), LOOPBACK)


def test_what_is_no_file_is_not_opened() -> None:
    reading, writing = os.pipe()
    with pytest.raises(FailedPrecondition, match="is not memory"):
        map_region(offer_of(reading, TOKEN), LOOPBACK)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"token": bytes(16)}, FailedPrecondition, "does not begin with the offered token"),
        ({"token": b"short"}, InvalidArgument, "a token of 5 bytes, expected a name and 16 bytes"),
        ({"num_bytes": 8192}, FailedPrecondition, "has 4096 bytes, expected 8192 as offered"),
        ({"num_bytes": 2048}, FailedPrecondition, "has 4096 bytes, expected 2048 as offered"),
        ({"num_bytes": 0}, InvalidArgument, "has 0 bytes, expected 24 to"),
        ({"num_bytes": 1 << 50}, InvalidArgument, "expected 24 to"),
        ({"pid": 2**31}, FailedPrecondition, "has no file"),
        ({"fd": 2**31 - 1}, FailedPrecondition, "has no file 2147483647 that this server can open"),
    ],
)
def test_an_offer_that_does_not_hold(changes: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with file_of(TOKEN, seals=SHRINK) as fd:
        offer = offer_of(fd, TOKEN)
        for name, value in changes.items():
            setattr(offer, name, value)
        with pytest.raises(kind, match=sentence):
            map_region(offer, LOOPBACK)


def test_another_users_process_is_refused(monkeypatch: pytest.MonkeyPatch, slots: SharedSlots) -> None:
    monkeypatch.setattr(region.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(FailedPrecondition, match="belongs to another user than this server"):
        map_region(slots.offer, LOOPBACK)


def test_a_refused_offer_leaves_a_session_with_bytes(channel: grpc.Channel, slots: SharedSlots) -> None:
    offer = slots.offer
    offer.token = bytes(16)
    robot, answer = opened(channel, offer)
    assert not answer.shared_memory
    assert "does not begin with the offered token" in answer.shared_memory_refused.message
    assert answer.shared_memory_refused.code == "FAILED_PRECONDITION"
    robot.observe(1, 3)
    assert robot.hear("chunk").answers_seq == 1
    robot.close()


# ---- ends


def mapped_regions() -> int:
    """Memory files that this process, which is client and server, has mapped for reading only."""
    return sum(
        "r--s" in line and "memfd:mstar-robot" in line for line in Path("/proc/self/maps").read_text().splitlines()
    )


def test_the_region_is_unmapped_however_the_session_ends(channel: grpc.Channel, slots: SharedSlots) -> None:
    before = mapped_regions()
    closing, _ = opened(channel, slots.offer)
    leaving, _ = opened(channel, slots.offer)
    breaking, _ = opened(channel, slots.offer)
    assert mapped_regions() == before + 3
    closing.close()
    list(closing.call)
    breaking.say()  # an empty message ends the stream
    breaking.ends_with()
    leaving.call.cancel()
    wrong = Robot(channel, epoch=0, shared_memory=slots.offer, schema=schema(cameras=[]))
    wrong.ends_with()
    for _ in range(10_000):
        if mapped_regions() == before:
            break
    assert mapped_regions() == before


def test_a_robot_that_closes_its_memory_does_no_harm(channel: grpc.Channel) -> None:
    slots = SharedSlots(CAMERAS)
    robot, _ = opened(channel, slots.offer)
    picture = shared_image(slots, 1, 4)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(slots.offer.fd, 0)
    slots.close()
    robot.observe(1, 4, images={"top": picture})
    assert robot.hear("chunk").answers_seq == 1
    robot.close()


def test_a_reader_finds_the_generation_before_its_bytes(slots: SharedSlots) -> None:
    """The layout that tensor.proto tells to clients in other languages."""
    ref = shared_image(slots, 1, 9).shared
    offer = slots.offer
    with mmap.mmap(offer.fd, offer.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        assert memory[:16] == offer.token
        assert struct.unpack_from("<Q", memory, ref.offset - 8) == (ref.generation,)
        assert memory[ref.offset : ref.offset + ref.num_bytes] == bytes([9]) * IMAGE_BYTES
