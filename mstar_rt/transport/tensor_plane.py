"""Tensors between processes without copying them through messages.

The producer copies a tensor once, into its arena, and sends the TensorRef in any record; consumers read it in
place. Tensors of up to MAX_INLINE_BYTES travel inside the record instead.

What each side owes:
- a consumer named in `put` calls `release` once for the ref, whether it read it or not;
- an owner hands every Release record that its endpoint receives to `on_release`;
- whoever learns of a death calls `forget_peer`.
Releases are sent in batches, up to `release_delay_s` after the first of them: when the process next receives (see
ControlEndpoint.before_receive) and, under an event loop, by a timer of the loop, as its receiver may be waiting for
long. Whoever waits for messages without a loop calls `flush` first. One plane belongs to one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mstar_rt.errors import InvalidArgument, SharedMemoryExhausted, Unavailable
from mstar_rt.message import Release, SegmentRef, TensorRef
from mstar_rt.transport.arena import HEADER_BYTES, Arena, ArenaKey, HeapArena, MemfdArena, attach_memfd
from mstar_rt.transport.block_allocator import ALIGNMENT, BlockAllocator
from mstar_rt.transport.dtypes import num_tensor_bytes, numpy_dtype
from mstar_rt.transport.endpoint import ControlEndpoint
from mstar_rt.transport.holds import BlockHolds

MAX_INLINE_BYTES = 16 << 10
"""Copying this much through a socket costs less than a release message."""

DEFAULT_ARENA_BYTES = 1 << 30
RELEASE_BATCH = 64
RELEASE_BATCH_BYTES = 4 << 20
RELEASE_BATCH_SHARE = 16
"""No more than one part in so many of an owner's arena waits to be released."""

RELEASE_DELAY_S = 0.02
"""Between processes: a release message costs its sender and its receiver as much as a small step, and neither waits for
it while there is room.
"""

Buffer = np.ndarray | memoryview | bytes | bytearray


class TensorPlane(Protocol):
    """One process's access to tensors of its own and of its peers.

    While `is_reserved`, `put` finds no room in the arena: it is kept for others.
    """

    is_reserved: bool

    @property
    def num_held_bytes(self) -> int:
        """Bytes of our arena that some consumer still holds; zero at idle."""
        ...

    @property
    def num_held_segments(self) -> int: ...

    def put(self, dtype: str, shape: Sequence[int], data: Buffer, consumers: Sequence[str]) -> TensorRef:
        """Copy a tensor to where `consumers` (addresses, our own allowed) can read it; each then releases it
        once.

        Args:    dtype: a numpy name or "bfloat16" (then `data` holds the bits, as uint16 if it is an array).
                 data: C-contiguous, exactly the bytes of `shape`.
        Raises:  InvalidArgument: `data` does not fit dtype and shape.
                 SharedMemoryExhausted: retryable, once consumers have released; carries the numbers.
        """
        ...

    def content(self, ref: TensorRef) -> memoryview:
        """Like `view`, as flat bytes."""
        ...

    def view(self, ref: TensorRef) -> np.ndarray:
        """The tensor, read-only and without a copy; bfloat16 as uint16. Valid until `release`.

        Raises:  Unavailable: its owner is dead.  InvalidArgument: the ref contradicts itself.
        """
        ...

    def release(self, ref: TensorRef) -> None:
        """This process no longer reads `ref`. Nothing to do for inline tensors, which is why they need no
        check.
        """
        ...

    def flush(self) -> None:
        """Send the releases that wait in the batch now."""
        ...

    def on_release(self, record: Release) -> None:
        """A consumer let go of blocks of ours."""
        ...

    def forget_peer(self, address: str) -> None:
        """A peer is dead: drop what it held of ours and our access to its arena."""
        ...

    def close(self) -> None: ...


class ArenaPlane:
    """See `TensorPlane`. `attach` opens the arena that a key names, or raises Unavailable."""

    def __init__(
        self,
        endpoint: ControlEndpoint,
        arena: Arena,
        attach: Callable[[ArenaKey, str], memoryview],
        release_delay_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._address = endpoint.address
        self._arena = arena
        self._attach = attach
        self._allocator = BlockAllocator(HEADER_BYTES, len(arena.data))
        self._holds = BlockHolds(self._allocator)
        self._attached: dict[str, tuple[ArenaKey, memoryview]] = {}
        self._release_delay_s = release_delay_s
        self._now_s = now_s
        self._pending: dict[str, list[int]] = {}
        self._num_pending_bytes = 0
        self._flush_at_s = 0.0
        self._timing_loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.is_reserved = False
        endpoint.before_receive(self._flush_if_due)

    @property
    def num_held_bytes(self) -> int:
        return self._allocator.num_held_bytes

    @property
    def num_held_segments(self) -> int:
        return self._allocator.num_held

    @property
    def num_unknown_releases(self) -> int:
        """Releases for blocks that their sender did not hold (any more)."""
        return self._holds.num_unknown_releases

    def put(self, dtype: str, shape: Sequence[int], data: Buffer, consumers: Sequence[str]) -> TensorRef:
        shape = tuple(map(int, shape))
        content = _content(dtype, shape, data)
        self._check_open()
        if len(content) <= MAX_INLINE_BYTES:
            return TensorRef(dtype, shape, inline=bytes(content))
        if self.is_reserved:
            raise SharedMemoryExhausted(f"no room for {len(content)} bytes in shared memory: others wait for it")
        block_id, offset = self._holds.hold(len(content), consumers)
        self._arena.data[offset : offset + len(content)] = content
        key = self._arena.key
        segment = SegmentRef(self._address, key.owner_pid, key.fd, key.arena_id, offset, len(content), block_id)
        return TensorRef(dtype, shape, segment=segment)

    def content(self, ref: TensorRef) -> memoryview:
        source, offset, num_bytes = self._checked(ref)
        return memoryview(source)[offset : offset + num_bytes]

    def view(self, ref: TensorRef) -> np.ndarray:
        source, offset, num_bytes = self._checked(ref)
        dtype = numpy_dtype(ref.dtype)
        return np.frombuffer(source, dtype, num_bytes // dtype.itemsize, offset).reshape(ref.shape)

    def release(self, ref: TensorRef) -> None:
        segment = ref.segment
        if segment is None:
            return
        if segment.owner == self._address:
            self._holds.let_go(self._address, (segment.block_id,))
            return
        if not self._pending:
            self._flush_later()
        pending = self._pending.setdefault(segment.owner, [])
        pending.append(segment.block_id)
        self._num_pending_bytes += segment.num_bytes
        if len(pending) >= RELEASE_BATCH:
            self._send_releases(segment.owner)
        elif self._release_delay_s and self._num_pending_bytes >= self._most_pending_bytes(segment.owner):
            self.flush()

    def flush(self) -> None:
        self._num_pending_bytes = 0
        for owner in list(self._pending):
            self._send_releases(owner)

    def on_release(self, record: Release) -> None:
        self._holds.let_go(record.holder, record.block_ids)

    def forget_peer(self, address: str) -> None:
        self._holds.forget(address)
        self._attached.pop(address, None)
        self._pending.pop(address, None)

    def close(self) -> None:
        """Send what is pending and close the arena; views that consumers have keep their memory.
        Idempotent.
        """
        if not self._closed:
            self._closed = True
            self._flush_if_open()
            self._attached.clear()
            self._arena.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the tensor plane of {self._address} is closed")

    def _checked(self, ref: TensorRef) -> tuple[bytes | memoryview, int, int]:
        """The bytes that hold the tensor, where in them it starts, and how many they are."""
        self._check_open()
        num_bytes = num_tensor_bytes(ref.dtype, ref.shape)
        source, offset = self._located(ref)
        available = len(source) if ref.segment is None else ref.segment.num_bytes
        if available != num_bytes or not 0 <= offset <= len(source) - num_bytes:
            raise InvalidArgument(
                f"a tensor reference is wrong: {ref.dtype} {list(ref.shape)} takes {num_bytes} bytes, "
                f"it names {available} bytes at {offset} of {len(source)}"
            )
        return source, offset, num_bytes

    def _located(self, ref: TensorRef) -> tuple[bytes | memoryview, int]:
        """The bytes that hold the tensor, and where in them it starts."""
        segment = ref.segment
        if segment is None:
            if ref.inline is None:
                raise InvalidArgument("a tensor reference is wrong: it has neither bytes nor a segment")
            return ref.inline, 0
        if segment.offset % ALIGNMENT:
            raise InvalidArgument(f"a tensor reference is wrong: offset {segment.offset} is not aligned to {ALIGNMENT}")
        attached = self._attached.get(segment.owner)
        if attached is not None and attached[0].is_of(segment):
            return attached[1], segment.offset
        if self._arena.key.is_of(segment):
            return self._arena.data.toreadonly(), segment.offset
        key = ArenaKey.of(segment)
        self._attached[segment.owner] = (key, self._attach(key, segment.owner))
        return self._attached[segment.owner][1], segment.offset

    def _flush_later(self) -> None:
        """Where an event loop runs, by its timer (without delay: after what is ready in it); elsewhere a later receive
        does."""
        self._flush_at_s = self._now_s() + self._release_delay_s
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            if self._timing_loop is not loop:
                self._timing_loop = loop
                loop.call_later(self._release_delay_s, self._flush_if_open)

    def _most_pending_bytes(self, owner: str) -> int:
        """What may wait of an owner's arena: little of a small one, which would fill with what nobody reads."""
        attached = self._attached.get(owner)
        return min(RELEASE_BATCH_BYTES, len(attached[1]) // RELEASE_BATCH_SHARE) if attached else RELEASE_BATCH_BYTES

    def _flush_if_due(self) -> None:
        if self._pending and self._now_s() >= self._flush_at_s:
            self.flush()

    def _flush_if_open(self) -> None:
        self._timing_loop = None
        # Where the endpoint was closed first, its peers learn of our end another way.
        with contextlib.suppress(Unavailable):
            self.flush()

    def _send_releases(self, owner: str) -> None:
        block_ids = self._pending.pop(owner)
        self._endpoint.send(owner, Release(self._address, block_ids))


def shared_memory_plane(
    endpoint: ControlEndpoint,
    deployment_id: str,
    limit_bytes: int = DEFAULT_ARENA_BYTES,
    release_delay_s: float = 0.0,
) -> ArenaPlane:
    """The plane between processes of one machine and one user. Takes memory as tensors come, up to
    `limit_bytes`.

    Raises:  FailedPrecondition: the system is not Linux or refuses the arena.
    """
    name = f"{deployment_id}-{endpoint.address.replace('/', '-')}"
    return ArenaPlane(endpoint, MemfdArena(name, limit_bytes), attach_memfd, release_delay_s)


class InProcessPlanes:
    """Planes that share this object read one another's tensors inside one process; for tests."""

    def __init__(self) -> None:
        self._arenas: dict[ArenaKey, memoryview] = {}

    def plane(self, endpoint: ControlEndpoint, limit_bytes: int = DEFAULT_ARENA_BYTES) -> ArenaPlane:
        return ArenaPlane(endpoint, HeapArena(limit_bytes, self._arenas), self._find)

    def _find(self, key: ArenaKey, owner: str) -> memoryview:
        data = self._arenas.get(key)
        if data is None:
            raise Unavailable(f"the tensors of {owner} are gone: it has closed its plane")
        return data


def _content(dtype: str, shape: tuple[int, ...], data: Buffer) -> memoryview:
    """`data` as flat bytes, after checking it against dtype and shape."""
    num_bytes = num_tensor_bytes(dtype, shape)
    if isinstance(data, np.ndarray) and (data.dtype != numpy_dtype(dtype) or data.shape != shape):
        raise InvalidArgument(
            f"an array of {data.dtype} {list(data.shape)} was put as {dtype} {list(shape)}: they must agree"
        )
    view: memoryview = memoryview(data)  # type: ignore[arg-type]  # typing knows arrays as buffers from 3.12
    if not view.c_contiguous:
        raise InvalidArgument(
            f"a tensor {dtype} {list(shape)} must be C-contiguous: copy it with numpy.ascontiguousarray"
        )
    if view.nbytes != num_bytes:
        raise InvalidArgument(f"{dtype} {list(shape)} takes {num_bytes} bytes, the data has {view.nbytes}")
    return view.cast("B") if num_bytes else memoryview(b"")
