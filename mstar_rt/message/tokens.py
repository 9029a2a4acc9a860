"""What workers say to one another and to the server: values of walks, what sessions keep, results."""

from __future__ import annotations

import msgspec

from mstar_rt.message.tensors import TensorRef


class TokenValue(msgspec.Struct, frozen=True, array_like=True):
    """A value as indices into the message's tensors.

    `kind` "tensor": one of them; "list": a collected list; "stacked": a list of equal shapes, as one tensor with one
    more leading dimension; "nested": lists of lists, in order of writing, a list of n being -1 - n before its entries;
    "none": no value at all.
    """

    indices: list[int]
    kind: str = "tensor"


class Token(msgspec.Struct, frozen=True, array_like=True):
    """See program.Send: what `index` names depends on `kind`."""

    kind: str
    index: int
    tag: tuple[int, ...]
    value: TokenValue
    flag: bool = False


class SequenceDelta(msgspec.Struct, frozen=True, array_like=True):
    """What is new in one sequence of a cache: positions `start` to `start + num_tokens`; what was there from `start` on
    is replaced. `num_tokens` -1: the sequence was released. `pages` is [num_layers, 2, num_tokens, num_kv_heads,
    head_dim], as an index into the message's tensors, or -1. `history`: see cache.moving.Delta."""

    label: list[str | int]
    start: int
    num_tokens: int
    pages: int = -1
    history: list[int] = []


class CacheDelta(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of `cache` that changed since they last went this way."""

    cache: str
    sequences: list[SequenceDelta]


class Tokens(msgspec.Struct, tag=True):
    """What a step on one rank gives to the part of the same walk on another rank. `caches` hold before the tokens."""

    request_id: str
    walk_id: int
    tensors: list[TensorRef]
    tokens: list[Token]
    caches: list[CacheDelta] = []


class FetchScope(msgspec.Struct, tag=True):
    """Send what `names` and `caches` hold under `scope`, for the walk `walk_id` that waits on rank `rank`.

    `caches` maps to whether what was sent the last time has been lost, so that its sender must start from what was
    there before; else only what changed since comes. `left_by` are the walks that left what is asked for: their
    requests have finished, even where the conductor's word of it is still under way.
    """

    request_id: str
    walk_id: int
    rank: int
    model: str
    scope: str
    names: list[str]
    caches: dict[str, bool]
    left_by: list[int] = []


class Fetched(msgspec.Struct, tag=True):
    """The answer to FetchScope. `missing` are names that the scope does not hold: it was released meanwhile."""

    request_id: str
    walk_id: int
    rank: int
    tensors: list[TensorRef]
    values: dict[str, TokenValue]
    caches: list[CacheDelta]
    missing: list[str] = []


class Emitted(msgspec.Struct, tag=True):
    """One tensor for the client. `iteration` has one entry per enclosing loop; `index` counts a request's emissions in
    one walk on one rank; `walk` names the walk."""

    request_id: str
    walk: str
    index: int
    name: str
    iteration: tuple[int, ...]
    tensor: TensorRef


class EmittedGroup(msgspec.Struct, tag=True):
    """Several tensors that one step of a walk gives to the client, in order."""

    records: list[Emitted]


class Release(msgspec.Struct, tag=True):
    """`holder` no longer reads these blocks of the addressee's arena."""

    holder: str
    block_ids: list[int]


class PeerGone(msgspec.Struct, tag=True):
    """A process died: drop what it held."""

    address: str
