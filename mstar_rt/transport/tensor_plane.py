"""Tensors between processes without copying them through messages.

The producer copies a tensor once, into its arena, and sends the TensorRef in any record; consumers read it in
place. Tensors of up to MAX_INLINE_BYTES travel inside the record instead.

What each side owes:
- a consumer named in `put` calls `release` once for the ref, whether it read it or not;
- an owner hands every Release record that its endpoint receives to `on_release`;
- whoever learns of a death calls `forget_peer`.
Releases are sent in batches, at the latest when the process next receives (see
ControlEndpoint.before_receive) and, under an event loop, when the loop has run what is ready: its receiver
may already be waiting. One plane belongs to one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mstar_rt.errors import InvalidArgument, Unavailable
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

Buffer = np.ndarray | memoryview | bytes | bytearray


class TensorPlane(Protocol):
    """One process's access to tensors of its own and of its peers."""

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

    def __init__(self, endpoint: ControlEndpoint, arena: Arena, attach: Callable[[ArenaKey, str], memoryview]) -> None:
        self._endpoint = endpoint
        self._address = endpoint.address
        self._arena = arena
        self._attach = attach
        self._allocator = BlockAllocator(HEADER_BYTES, len(arena.data))
        self._holds = BlockHolds(self._allocator)
        self._attached: dict[str, tuple[ArenaKey, memoryview]] = {}
        self._pending: dict[str, list[int]] = {}
        self._closed = False
        endpoint.before_receive(self.flush)

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
        shape = tuple(int(extent) for extent in shape)
        content = _content(dtype, shape, data)
        self._check_open()
        if len(content) <= MAX_INLINE_BYTES:
            return TensorRef(dtype, shape, inline=bytes(content))
        block_id, offset = self._holds.hold(len(content), consumers)
        self._arena.data[offset : offset + len(content)] = content
        key = self._arena.key
        segment = SegmentRef(self._address, key.owner_pid, key.fd, key.arena_id, offset, len(content), block_id)
        return TensorRef(dtype, shape, segment=segment)

    def view(self, ref: TensorRef) -> np.ndarray:
        self._check_open()
        num_bytes = num_tensor_bytes(ref.dtype, ref.shape)
        source, offset = self._located(ref)
        available = len(source) if ref.segment is None else ref.segment.num_bytes
        if available != num_bytes or not 0 <= offset <= len(source) - num_bytes:
            raise InvalidArgument(
                f"a tensor reference is wrong: {ref.dtype} {list(ref.shape)} takes {num_bytes} bytes, "
                f"it names {available} bytes at {offset} of {len(source)}"
            )
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
            self._flush_soon()
        pending = self._pending.setdefault(segment.owner, [])
        pending.append(segment.block_id)
        if len(pending) >= RELEASE_BATCH:
            self._send_releases(segment.owner)

    def flush(self) -> None:
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

    def _located(self, ref: TensorRef) -> tuple[bytes | memoryview, int]:
        """The bytes that hold the tensor, and where in them it starts."""
        segment = ref.segment
        if segment is None:
            if ref.inline is None:
                raise InvalidArgument("a tensor reference is wrong: it has neither bytes nor a segment")
            return ref.inline, 0
        if segment.offset % ALIGNMENT:
            raise InvalidArgument(f"a tensor reference is wrong: offset {segment.offset} is not aligned to {ALIGNMENT}")
        key = ArenaKey.of(segment)
        if key == self._arena.key:
            return self._arena.data.toreadonly(), segment.offset
        attached = self._attached.get(segment.owner)
        if attached is None or attached[0] != key:
            attached = self._attached[segment.owner] = (key, self._attach(key, segment.owner))
        return attached[1], segment.offset

    def _flush_soon(self) -> None:
        """Where an event loop runs, flush after what is ready in it; elsewhere the next receive does."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(self._flush_if_open)

    def _flush_if_open(self) -> None:
        # Where the endpoint was closed first, its peers learn of our end another way.
        with contextlib.suppress(Unavailable):
            self.flush()

    def _send_releases(self, owner: str) -> None:
        block_ids = self._pending.pop(owner)
        self._endpoint.send(owner, Release(self._address, block_ids))


def shared_memory_plane(
    endpoint: ControlEndpoint, deployment_id: str, limit_bytes: int = DEFAULT_ARENA_BYTES
) -> ArenaPlane:
    """The plane between processes of one machine and one user. Takes memory as tensors come, up to
    `limit_bytes`.

    Raises:  FailedPrecondition: the system is not Linux or refuses the arena.
    """
    name = f"{deployment_id}-{endpoint.address.replace('/', '-')}"
    return ArenaPlane(endpoint, MemfdArena(name, limit_bytes), attach_memfd)


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
