"""Memory that one process writes and others read: an anonymous memory file, opened through /proc.

The file has no name in any directory, so the kernel frees it when the last process that maps it ends, however
it ends. It is as large as the limit from the start and takes memory only where it was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import struct
from dataclasses import dataclass
from typing import Protocol

from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable
from mstar_rt.message import SegmentRef

HEADER_BYTES = 64

WARM_BYTES = 16 << 20
"""Touched when an arena is made, in 10 ms: the first write to a megabyte of new memory takes 0.6 ms, later
ones 0.03.
"""

_HEADER = struct.Struct("<8s16sQ")
_MAGIC = b"mstarRT1"


@dataclass(frozen=True)
class ArenaKey:
    """What identifies an arena: where to open it, and the random id that tells it from any other file
    there.
    """

    owner_pid: int
    fd: int
    arena_id: bytes

    @classmethod
    def of(cls, segment: SegmentRef) -> ArenaKey:
        return cls(segment.owner_pid, segment.fd, segment.arena_id)

    def is_of(self, segment: SegmentRef) -> bool:
        """Whether the segment lies in this arena."""
        return segment.arena_id == self.arena_id and segment.owner_pid == self.owner_pid and segment.fd == self.fd


class Arena(Protocol):
    """An owner's writable memory, `data[HEADER_BYTES:]` being free for blocks."""

    @property
    def key(self) -> ArenaKey: ...

    @property
    def data(self) -> memoryview: ...

    def close(self) -> None: ...


class MemfdArena:
    """An arena in an anonymous memory file; `name` shows in /proc for people.

    Raises:  FailedPrecondition: the system has no memory files (it is not Linux), or refuses `num_bytes`.
    """

    def __init__(self, name: str, num_bytes: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise FailedPrecondition("tensors between processes need Linux: this system has no memfd_create")
        arena_id = secrets.token_bytes(16)
        try:
            self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self._fd, num_bytes)
            # With its size sealed, no reader can meet SIGBUS.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self._fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise FailedPrecondition(
                f"an arena of {num_bytes} bytes of shared memory cannot be made: {error.strerror}"
            ) from error
        self._data = memoryview(self._map)
        self._touch(min(WARM_BYTES, num_bytes))
        _HEADER.pack_into(self._map, 0, _MAGIC, arena_id, num_bytes)
        self._key = ArenaKey(os.getpid(), self._fd, arena_id)
        self._closed = False

    @property
    def key(self) -> ArenaKey:
        return self._key

    @property
    def data(self) -> memoryview:
        return self._data

    def _touch(self, num_bytes: int) -> None:
        zeros = bytes(mmap.PAGESIZE)
        for start in range(0, num_bytes, mmap.PAGESIZE):
            self._data[start : min(start + mmap.PAGESIZE, num_bytes)] = zeros[: num_bytes - start]

    def close(self) -> None:
        """No new reader can attach; memory goes once the last view of it does. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self._fd)
            # Where views of ours are left, the last of them unmaps.
            with contextlib.suppress(BufferError):
                self._data.release()
                self._map.close()


def attach_memfd(key: ArenaKey, owner: str) -> memoryview:
    """The arena of another process, read-only. It stays readable when the owner dies, until the last view is
    dropped.

    Raises:  Unavailable: the owner is dead, or what is there now is not its arena.
    """
    path = f"/proc/{key.owner_pid}/fd/{key.fd}"
    gone = f"the shared memory of {owner} (process {key.owner_pid}) is gone: the process has ended or restarted"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Unavailable(gone)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise FailedPrecondition(
            f"the shared memory of {owner} (process {key.owner_pid}) may not be opened: run all processes "
            "of a deployment as one user"
        ) from error
    except OSError as error:
        raise Unavailable(gone) from error
    try:
        num_bytes = os.fstat(fd).st_size
        if os.pread(fd, _HEADER.size, 0) != _HEADER.pack(_MAGIC, key.arena_id, num_bytes):
            raise Unavailable(gone)
        return memoryview(mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
    except struct.error as error:
        raise InvalidArgument(f"a segment of {owner} names an arena id of {len(key.arena_id)} bytes") from error
    finally:
        os.close(fd)


class HeapArena:
    """An arena in this process's own memory, for planes that share one process."""

    def __init__(self, num_bytes: int, arenas: dict[ArenaKey, memoryview]) -> None:
        self._arenas = arenas
        self._key = ArenaKey(os.getpid(), -1, secrets.token_bytes(16))
        self._data = memoryview(mmap.mmap(-1, num_bytes))
        arenas[self._key] = self._data.toreadonly()

    @property
    def key(self) -> ArenaKey:
        return self._key

    @property
    def data(self) -> memoryview:
        return self._data

    def close(self) -> None:
        self._arenas.pop(self._key, None)
