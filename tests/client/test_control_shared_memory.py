"""When a robot's images go through shared memory, and that a slot is not used again while it may still be read."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from fake_policy_server import SIZE, FakeStream, fake_policy_server, policy_schema

from mstar_rt.client import connect
from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.observation import Seen
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.client.control.shared_slots import NUM_SLOTS, is_loopback
from mstar_rt.clock import ManualClock
from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2
from mstar_rt.protos.arrays import tensor_from_array

SEEN = Seen({"top": np.full((SIZE, SIZE, 3), 7, np.uint8)}, [1.0, 2.0, 3.0], ["wrist"])


def session(shared_memory: Any = "auto", address: str = "127.0.0.1:5", used: bool = True) -> ControlState:
    settings = ControlSettings("toy", 20.0, "push", shared_memory=shared_memory)
    state = ControlState(settings, policy_info(policy_schema()), ManualClock(), address)
    opening = state.connecting().open
    assert opening.HasField("shared_memory") == (shared_memory is not False and is_loopback(address))
    refusal = None if used else request_pb2.ErrorDetail(message="it is another user's")
    opened = wire.ControlOpened(session_id="s", shared_memory=used, shared_memory_refused=refusal)
    state.received(wire.ControlResponse(opened=opened))
    return state


def sent(state: ControlState) -> wire.Observation:
    """The next message on the wire, an observation that was just sent."""
    state.send(SEEN)
    message = state.outbox.pop()
    assert message is not None
    return message.observation


def answer(state: ControlState, seq: int) -> None:
    actions = tensor_from_array(np.zeros((8, 2), np.float32))
    state.received(wire.ControlResponse(chunk=wire.ActionChunk(answers_seq=seq, actions=actions)))


def event(state: ControlState, kind: int, seq: int) -> None:
    state.received(wire.ControlResponse(event=wire.ControlEvent(kind=kind, seq=seq)))  # type: ignore[arg-type]


def test_large_images_wait_for_memory_where_bytes_would_be_too_long() -> None:
    """A server that stands still for a moment takes all slots; that is no fault of the robot's loop."""
    state = session()
    state.received(wire.ControlResponse(opened=wire.ControlOpened(shared_memory=True, max_message_bytes=32_800)))
    for _ in range(NUM_SLOTS):
        assert sent(state).images["top"].WhichOneof("content") == "shared"
    with pytest.raises(Unavailable, match="all shared memory is taken by observations on their way"):
        state.send(SEEN)
    assert state.act(SEEN).kind == "hold"
    event(state, wire.ControlEvent.KIND_DROPPED_STALE, 3)
    assert sent(state).images["top"].WhichOneof("content") == "shared"
    state.shared.close()


def test_images_are_references_and_the_state_is_not() -> None:
    state = session()
    observation = sent(state)
    image = observation.images["top"]
    assert image.WhichOneof("content") == "shared"
    assert (image.height, image.width, image.channels, image.shared.num_bytes) == (SIZE, SIZE, 3, SIZE * SIZE * 3)
    assert observation.state.WhichOneof("content") == "data"
    stats = state.record.snapshot()
    assert (stats.num_shared, stats.shared_memory, stats.shared_memory_refused) == (1, True, "")
    state.shared.close()


def test_compressed_pictures_travel_as_bytes() -> None:
    state = session()
    state.send(Seen({"top": b"\xff\xd8 a JPEG"}, [1.0, 2.0, 3.0], ["wrist"]))
    assert state.outbox.pop().observation.images["top"].data == b"\xff\xd8 a JPEG"  # type: ignore[union-attr]
    state.shared.close()


def test_a_slot_waits_for_what_becomes_of_its_observation() -> None:
    state = session()
    offsets = [sent(state).images["top"].shared.offset for _ in range(NUM_SLOTS)]
    assert len(set(offsets)) == NUM_SLOTS
    assert sent(state).images["top"].WhichOneof("content") == "data", "every slot may still be read"
    answer(state, 3)
    assert sent(state).images["top"].shared.offset == offsets[2]
    for kind in (wire.ControlEvent.KIND_LATE, wire.ControlEvent.KIND_RECOVERING):
        event(state, kind, 5)
    assert sent(state).images["top"].WhichOneof("content") == "data"
    for seq, kind in enumerate(("DROPPED_STALE", "DROPPED_LATE", "DROPPED_EPOCH", "FAILED", "NOT_DUE"), start=5):
        event(state, wire.ControlEvent.Kind.Value(f"KIND_{kind}"), seq)
        assert sent(state).images["top"].shared.offset == offsets[seq - 1]
    state.shared.close()


def test_what_is_never_sent_holds_no_slot() -> None:
    state = session()
    for _ in range(3 * NUM_SLOTS):
        state.send(SEEN)  # replaces the one before, which still waits
    assert state.record.num_shared == 3 * NUM_SLOTS
    for _ in range(3 * NUM_SLOTS):
        with pytest.raises(InvalidArgument):
            state.send(Seen({}, [1.0, 2.0, 3.0], ["wrist"]))
        state.send(SEEN)
        state.reset(None, None)
    assert state.record.num_shared == 6 * NUM_SLOTS
    state.shared.close()


def test_each_use_is_of_another_generation_and_a_new_connection_begins_with_all_slots() -> None:
    state = session()
    generations = [sent(state).images["top"].shared.generation for _ in range(NUM_SLOTS)]
    offer = state.connecting().open.shared_memory
    state.received(wire.ControlResponse(opened=wire.ControlOpened(shared_memory=True)))
    generations += [sent(state).images["top"].shared.generation for _ in range(NUM_SLOTS)]
    assert generations == list(range(1, 2 * NUM_SLOTS + 1))
    assert offer.pid == os.getpid()
    state.shared.close()


def test_a_refusal_leaves_bytes_and_is_told() -> None:
    state = session(used=False)
    assert sent(state).images["top"].WhichOneof("content") == "data"
    stats = state.record.snapshot()
    assert (stats.num_shared, stats.shared_memory, stats.shared_memory_refused) == (0, False, "it is another user's")
    state.shared.close()


def test_another_machine_is_offered_nothing() -> None:
    state = session(address="10.0.0.7:50051", used=False)
    assert "is not on this machine" in state.record.snapshot().shared_memory_refused
    with pytest.raises(
        FailedPrecondition, match=r"server at 10\.0\.0\.7:50051 is not on this machine; leave shared_memory out"
    ):
        session(True, "10.0.0.7:50051")


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:5", True), ("localhost:5", True), ("[::1]:5", True), ("unix:/x", True), ("dns:///localhost:5", True),
     ("ipv4:127.0.0.1:5", True), ("10.0.0.1:5", False), ("localhost.evil.org:5", False), ("", False)],
)  # fmt: skip
def test_what_is_this_machine(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_who_insists_gets_an_error_from_a_server_that_refuses() -> None:
    def refuses(stream: FakeStream) -> None:
        stream.send(opened=wire.ControlOpened(shared_memory_refused=request_pb2.ErrorDetail(message="no")))

    with fake_policy_server() as server, connect(server.address) as client:
        server.opens = refuses
        with pytest.raises(FailedPrecondition, match="asked for and cannot be used: no; leave shared_memory out"):
            client.control("toy", control_hz=20.0, instruction="push", shared_memory=True)
        with client.control("toy", control_hz=20.0, instruction="push") as robot:
            assert robot.stats.shared_memory_refused == "no"


def test_nothing_is_left_open() -> None:
    with fake_policy_server() as server, connect(server.address) as client:
        with client.control("toy", control_hz=20.0, instruction="push"):
            assert _memory_files()
        assert not _memory_files()


def _memory_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:mstar-robot" in os.readlink(f"/proc/self/fd/{fd}"):
                found.append(fd)
        except FileNotFoundError:
            pass  # the directory that is being listed
    return found
