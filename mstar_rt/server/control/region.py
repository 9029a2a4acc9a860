"""A robot's memory on this machine, mapped for reading, in place of bytes in its messages."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import mmap
import os
import stat
import struct

import numpy as np

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2

TOKEN_BYTES = 16
MAX_REGION_BYTES = 256 << 20
SERVED = hasattr(fcntl, "F_GET_SEALS")
"""Anonymous memory files are Linux's."""

_GENERATION = struct.Struct("<Q")
_FIRST_OFFSET = TOKEN_BYTES + _GENERATION.size
_LOOPBACK = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127.", "unix:")


class SharedRegion:
    """Of one session. What is copied out of it was complete and of the observation that names it, or is refused."""

    def __init__(self, name: str, memory: mmap.mmap) -> None:
        self._name = name
        self._map = memory
        self._data = memoryview(memory)
        self._copies: dict[str, np.ndarray] = {}
        self.reuse_copies = False
        """A copy is only used until the next one of its name is made: new memory costs more than the copying."""

    def copied(self, array: np.ndarray, name: str) -> np.ndarray:
        """An array over a view, as it is now."""
        if not self.reuse_copies:
            return array.copy()
        own = self._copies.get(name)
        if own is None or own.shape != array.shape or own.dtype != array.dtype:
            own = self._copies[name] = np.empty_like(array)
        own[...] = array
        return own

    def view(self, ref: tensor_pb2.SharedMemoryRef, name: str) -> memoryview:
        """Bytes that the robot may still overwrite: copy them, then `check`.

        Raises:  InvalidArgument: they lie elsewhere.  FailedPrecondition: they are stale.
        """
        if ref.region != self._name:
            raise InvalidArgument(
                f"{name!r} refers to shared memory {ref.region!r}, expected {self._name!r}, which this session has"
            )
        if ref.offset % 8 or ref.offset < _FIRST_OFFSET or ref.offset + ref.num_bytes > len(self._data):
            raise InvalidArgument(
                f"{name!r} refers to {ref.num_bytes} bytes at {ref.offset} of shared memory, expected a multiple of 8, "
                f"from {_FIRST_OFFSET}, and an end within its {len(self._data)} bytes"
            )
        self.check(ref, name)
        return self._data[ref.offset : ref.offset + ref.num_bytes]

    def check(self, ref: tensor_pb2.SharedMemoryRef, name: str) -> None:
        """Raises:  FailedPrecondition: the bytes have been overwritten."""
        (found,) = _GENERATION.unpack_from(self._data, ref.offset - _GENERATION.size)
        if not ref.generation or found != ref.generation:
            raise FailedPrecondition(
                f"{name!r} was overwritten in shared memory before it could be read: it is of generation {found}, "
                f"expected {ref.generation}; leave memory alone until its observation is answered or dropped"
            )

    def close(self) -> None:
        """Idempotent. Where a view is left, the last one unmaps."""
        with contextlib.suppress(BufferError):
            self._data.release()
            self._map.close()


def map_region(offer: wire.SharedMemoryOffer, peer: str) -> SharedRegion:
    """`peer` is the client's address as gRPC has it.

    Raises:  FailedPrecondition, InvalidArgument: nothing was mapped.
    """
    if not SERVED:
        raise FailedPrecondition("this server's system has no memory files, which Linux has")
    if not peer.startswith(_LOOPBACK):
        raise FailedPrecondition(f"shared memory is offered from {peer}, expected a client on the server's machine")
    if not offer.region or len(offer.token) != TOKEN_BYTES:
        raise InvalidArgument(
            f"the offer of shared memory has region {offer.region!r} and a token of {len(offer.token)} bytes, "
            f"expected a name and {TOKEN_BYTES} bytes"
        )
    if not _FIRST_OFFSET <= offer.num_bytes <= MAX_REGION_BYTES:
        raise InvalidArgument(
            f"the offer of shared memory has {offer.num_bytes} bytes, expected {_FIRST_OFFSET} to {MAX_REGION_BYTES}"
        )
    fd = _opened(offer)
    try:
        _check_file(fd, offer)
        return SharedRegion(offer.region, mmap.mmap(fd, offer.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
    except OSError as error:
        raise FailedPrecondition(f"the offered shared memory cannot be mapped: {error.strerror or error}") from error
    finally:
        os.close(fd)


def _opened(offer: wire.SharedMemoryOffer) -> int:
    """Nothing but a plain file is opened: opening may have effects, or wait."""
    process = f"/proc/{offer.pid}"
    path = f"{process}/fd/{offer.fd}"
    try:
        if os.stat(process).st_uid != os.geteuid():
            raise FailedPrecondition(f"process {offer.pid} belongs to another user than this server: run both as one")
        if stat.S_ISREG(os.stat(path).st_mode):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise FailedPrecondition(
            f"process {offer.pid} has no file {offer.fd} that this server can open ({error.strerror}): expected the "
            "client's own, on the server's machine"
        ) from error
    raise FailedPrecondition(f"file {offer.fd} of process {offer.pid} is not memory")


def _check_file(fd: int, offer: wire.SharedMemoryOffer) -> None:
    """A file that can shrink would end this process when it is read beyond its end."""
    what = f"file {offer.fd} of process {offer.pid}"
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise FailedPrecondition(f"{what} belongs to another user than this server: run both as one")
    if found.st_size != offer.num_bytes:
        raise FailedPrecondition(f"{what} has {found.st_size} bytes, expected {offer.num_bytes} as offered")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise FailedPrecondition(f"{what} can shrink, expected a memory file with the seal F_SEAL_SHRINK")
    if not hmac.compare_digest(os.pread(fd, TOKEN_BYTES, 0), offer.token):
        raise FailedPrecondition(f"{what} does not begin with the offered token: it is another one")
