"""What records of every kind have in common: tensors, options, what a node cost."""

from __future__ import annotations

from typing import Union

import msgspec

ParamField = Union[bool, int, float, str, list[float]]


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """A block of the shared-memory arena of `owner`; `block_id` is what a Release names."""

    owner: str
    owner_pid: int
    fd: int
    arena_id: bytes
    offset: int
    num_bytes: int
    block_id: int


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """A tensor by value (`inline`, small ones) or by reference (`segment`). dtype: numpy's names and "bfloat16"."""

    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None = None
    segment: SegmentRef | None = None


class NodeTime(msgspec.Struct, array_like=True):
    """What one node cost one request: steps taken, microseconds waiting in the ready set and running (batch time).

    Counted once for each unit of it in a step. `batched_with` are the units of other requests in these steps,
    `batched_own` further ones of the same request, e.g. of another branch.
    """

    num_steps: int = 0
    queue_us: float = 0.0
    run_us: float = 0.0
    batched_with: int = 0
    batched_own: int = 0
