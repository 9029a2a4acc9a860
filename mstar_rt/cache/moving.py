"""Sequences that go from one rank to another: what is new in them, and taking it in on the other side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from mstar_rt.cache.marks import Peer, Write
from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.reservation import rewrite
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import Internal

RELEASED = -1
"""`num_tokens` of a sequence that was given up."""


class Delta(NamedTuple):
    """A sequence from position `start` on; what the receiver has there is replaced, so it is `start + num_tokens` long.

    `pages` [num_layers, 2 (key, value), num_tokens, num_kv_heads, head_dim], on the CPU; None for no tokens. `history`
    is the version of the sequence, then first position and stamp of the write before `start` and those that follow: by
    it the receiver tells what it has from what it only seems to have. See PeerMarks.
    """

    label: Hashable
    start: int
    num_tokens: int
    pages: torch.Tensor | None
    history: tuple[int, ...]

    @property
    def version(self) -> int:
        return self.history[0]

    @property
    def writes(self) -> list[Write]:
        return list(zip(self.history[1::2], self.history[2::2], strict=True))


def export_delta(store: SequenceStore, peer: Peer) -> list[Delta]:
    """What changed in `store` since it last went to `peer` or came from it; from now on the peer is taken to have it.

    Sequences that did not change are left out.
    """
    deltas = _changes(store, peer)
    for delta in deltas:
        store.marks(delta.label).agree(peer)
    return deltas


def export_on_request(store: SequenceStore, peer: Peer, lost: bool) -> list[Delta]:
    """Like export_delta, for a peer that may never take it in; its next request says so.

    `lost`: the answer to the peer's last request was not taken in, so that what held before it holds still.
    """
    for label in [*store, *store.given_up()]:
        marks = store.marks(label)
        (marks.take_back if lost else marks.confirm)(peer)
    deltas = _changes(store, peer)
    for delta in deltas:
        store.marks(delta.label).agree_unless_lost(peer)
    return deltas


def apply_deltas(store: SequenceStore, peer: Peer, deltas: Sequence[Delta]) -> None:
    """Make the sequences that `peer` changed what they are there: all of `deltas`, or nothing if it raises.

    Tokens that are here already stay where they are, so that what other peers know of them stays true.

    Raises:  PagesExhausted: retryable.
             Internal: the deltas do not fit what is here: tokens that this rank wrote and nobody else has seen would be
             lost, or what comes before the first new one is not what the peer has there.
             InvalidArgument: a sequence is longer than this cache is declared for.
    """
    assert len({delta.label for delta in deltas}) == len(deltas), "one sequence twice"
    for delta in deltas:
        _check_tensor(store.pool, delta)
        _check_fits(store, delta)
    arriving = [delta for delta in deltas if delta.num_tokens != RELEASED]
    leaving = [delta.label for delta in deltas if delta.num_tokens == RELEASED]
    _replace(store, arriving, [store.get(label) for label in leaving if label in store])
    for label in leaving:
        store.release(label)
    for delta in deltas:
        length = delta.start + max(0, delta.num_tokens)
        store.marks(delta.label).take_over(peer, delta.version, delta.start, delta.writes, length)


def label_to_list(label: Hashable) -> list[str | int]:
    """For a message.

    Raises: Internal: the label is neither a string, an integer nor a flat tuple of them.
    """
    items = label if isinstance(label, tuple) else (label,)
    if not all(isinstance(item, str | int) for item in items):
        raise Internal(
            f"the sequence {label!r} cannot go to another rank: "
            "a label must be a string, an integer or a flat tuple of them"
        )
    return ["tuple" if isinstance(label, tuple) else "single", *items]


def label_from_list(items: Sequence[str | int]) -> Hashable:
    """The label that label_to_list was given."""
    return tuple(items[1:]) if items[0] == "tuple" else items[1]


def _changes(store: SequenceStore, peer: Peer) -> list[Delta]:
    deltas = []
    for label in store.given_up():
        marks = store.marks(label)
        marks.stamp(0)
        if marks.first_change(peer) is not None:
            deltas.append(Delta(label, 0, RELEASED, None, (marks.version,)))
    for label in store:
        table, marks = store.get(label), store.marks(label)
        marks.stamp(table.length)
        start = marks.first_change(peer)
        if start is not None:
            pages = store.pool.read_tokens(table, start, table.length) if start < table.length else None
            history = (marks.version, *chain.from_iterable(marks.writes_from(start)))
            deltas.append(Delta(label, start, table.length - start, pages, history))
    return deltas


def _replace(store: SequenceStore, arriving: Sequence[Delta], leaving: Sequence[PageTable]) -> None:
    """Write what arrives behind what is the same already; the tables that leave are emptied for it."""
    pool = store.pool
    tables = [store.get(delta.label) if delta.label in store else pool.new_table() for delta in arriving]
    kept = [_num_kept(table, delta) for table, delta in zip(tables, arriving, strict=True)]
    counts = [delta.start + delta.num_tokens - start for delta, start in zip(arriving, kept, strict=True)]
    none = [0] * len(leaving)
    rewrite([*tables, *leaving], [*kept, *none], [*counts, *none])
    for table, delta, start in zip(tables, arriving, kept, strict=True):
        store.put(delta.label, table)
        if delta.pages is not None and start < table.length:
            pool.write_tokens(table, start, delta.pages[:, :, start - delta.start :])


def _num_kept(table: PageTable, delta: Delta) -> int:
    """How many leading positions of the table are what they are in the delta."""
    if table.marks is None:
        return delta.start
    return table.marks.num_equal(delta.start, delta.writes, delta.start + delta.num_tokens)


def _check_fits(store: SequenceStore, delta: Delta) -> None:
    """See apply_deltas. What this rank alone has written may only be replaced by the very same."""
    length = settled = 0
    fits = delta.start == 0
    if delta.label in store:
        table, marks = store.get(delta.label), store.marks(delta.label)
        length, settled = table.length, marks.settled
        fits = marks.can_continue(delta.start, delta.writes)
        if fits and settled < length:
            fits = _holds_the_same(store.pool, table, settled, delta)
    if not fits:
        raise Internal(
            f"two ranks wrote the sequence {delta.label!r}: one sends positions {delta.start} to "
            f"{delta.start + max(0, delta.num_tokens)}, the other has {length}, {length - settled} of them its own; "
            "nodes on different ranks must write a sequence one after the other, along an edge of the graph"
        )


def _holds_the_same(pool: KVPool, table: PageTable, start: int, delta: Delta) -> bool:
    """Whether the delta has the tokens that the table has from `start` on, bit for bit."""
    if delta.pages is None or delta.start > start or delta.start + delta.num_tokens < table.length:
        return False
    tokens = delta.pages[:, :, start - delta.start : table.length - delta.start]
    return pool.num_equal_tokens(table, start, tokens) == table.length - start


def _check_tensor(pool: KVPool, delta: Delta) -> None:
    """Ranks that share a cache have the same declaration and dtype; anything else would be read as noise."""
    layers, two, _, _, heads, dim = pool.kv.shape
    expected = (layers, two, max(0, delta.num_tokens), heads, dim)
    if delta.pages is None:
        fits = delta.num_tokens <= 0
    else:
        fits = tuple(delta.pages.shape) == expected and delta.pages.dtype is pool.dtype
    if not fits:
        found = "nothing" if delta.pages is None else f"{delta.pages.dtype} {list(delta.pages.shape)}"
        raise Internal(
            f"the sequence {delta.label!r} came from another rank as {found}, expected {pool.dtype} {list(expected)}: "
            "ranks that share a cache must have the same model and dtype"
        )
