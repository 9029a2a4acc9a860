"""`SharedSlots`: raw images where a server on the same machine reads them, in place of bytes in messages."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
from collections.abc import Sequence

import numpy as np

from mstar_rt.client.control.robot_schema import CameraSchema
from mstar_rt.errors import FailedPrecondition
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2

NUM_SLOTS = 16
"""Observations that may be on their way at once; memory is taken by those only that are."""

MAX_SLOTS_BYTES = 256 << 20
_TOKEN_BYTES = 16
_ALIGNMENT = 64
_GENERATION = struct.Struct("<Q")
_LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")


class Slot:
    """Room for the images of one observation."""

    def __init__(self, slots: SharedSlots, start: int) -> None:
        self._slots = slots
        self._start = start

    def fill(self, image: tensor_pb2.Image, camera: str, picture: np.ndarray) -> None:
        """Copy `picture`, which fits the schema, and refer to it. Its generation is written last: a reader that finds
        it before and after its own copy has the whole picture."""
        offset, shape = self._slots.places[camera]
        self._slots.write(self._start + offset, picture, shape, image.shared)


class SharedSlots:
    """A region of one session: an anonymous memory file that cannot shrink, so it has no name, is gone with the last
    process that has it, and never ends a reader. A slot is used again once its observation is answered or dropped.

    Raises:  FailedPrecondition: the system has no such memory.
    """

    def __init__(self, cameras: Sequence[CameraSchema]) -> None:
        self.places: dict[str, tuple[int, tuple[int, int, int]]] = {}
        """By camera: where its picture begins in a slot, and its shape."""
        slot_bytes = 0
        for camera in cameras:
            shape = (camera.height, camera.width, 3)
            self.places[camera.name] = slot_bytes + _ALIGNMENT, shape
            slot_bytes += _ALIGNMENT + -(-camera.height * camera.width * 3 // _ALIGNMENT) * _ALIGNMENT
        num_slots = min(NUM_SLOTS, (MAX_SLOTS_BYTES - _ALIGNMENT) // slot_bytes) if slot_bytes else 0
        self._num_bytes = _ALIGNMENT + num_slots * slot_bytes
        self._fd, self._map = _memory_file(self._num_bytes)
        self._data = memoryview(self._map)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._name = f"robot-{secrets.token_hex(4)}"
        self._data[:_TOKEN_BYTES] = self._token
        self._free = [_ALIGNMENT + index * slot_bytes for index in reversed(range(num_slots))]
        self._taken: dict[int, int] = {}
        self._generation = 0

    @property
    def offer(self) -> wire.SharedMemoryOffer:
        return wire.SharedMemoryOffer(
            region=self._name, pid=os.getpid(), fd=self._fd, num_bytes=self._num_bytes, token=self._token
        )

    # ---- slots

    def take(self, seq: int) -> Slot | None:
        """For an observation; None: all are still being read, so it travels as bytes."""
        if not self._free:
            return None
        self._taken[seq] = start = self._free.pop()
        return Slot(self, start)

    def give_back(self, seq: int) -> None:
        """It is known what became of the observation, so nobody reads its slot any more."""
        start = self._taken.pop(seq, None)
        if start is not None:
            self._free.append(start)

    def give_back_all(self) -> None:
        for seq in list(self._taken):
            self.give_back(seq)

    def write(
        self, offset: int, picture: np.ndarray, shape: tuple[int, int, int], ref: tensor_pb2.SharedMemoryRef
    ) -> None:
        before = offset - _GENERATION.size
        _GENERATION.pack_into(self._data, before, 0)
        height, width, channels = shape
        num_bytes = height * width * channels
        np.copyto(np.frombuffer(self._data, np.uint8, num_bytes, offset).reshape(shape), picture)
        self._generation += 1
        _GENERATION.pack_into(self._data, before, self._generation)
        ref.region, ref.offset, ref.num_bytes, ref.generation = self._name, offset, num_bytes, self._generation

    def read(self, ref: tensor_pb2.SharedMemoryRef) -> bytes:
        """Of a slot that is not given back."""
        return bytes(self._data[ref.offset : ref.offset + ref.num_bytes])

    def close(self) -> None:
        """No server can map it any more. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(BufferError):
                self._data.release()
                self._map.close()


def is_loopback(address: str) -> bool:
    """Whether a client's address is one on its own machine."""
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        address = address.removeprefix(scheme)
    return address.startswith(_LOOPBACK)


def _memory_file(num_bytes: int) -> tuple[int, mmap.mmap]:
    if not hasattr(os, "memfd_create"):
        raise FailedPrecondition("shared memory needs Linux: this system has no memfd_create")
    import fcntl  # which other systems may lack

    try:
        fd = os.memfd_create("mstar-robot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, num_bytes)
            # The server verifies this: reading beyond the end of a file that has shrunk would kill it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return fd, mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise FailedPrecondition(f"{num_bytes} bytes of shared memory cannot be had: {error.strerror}") from error
