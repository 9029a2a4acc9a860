"""Who left what where: the ranks that hold the persisted tensors and the lasting sequences of a request or session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from mstar_rt.message import Fetch
from mstar_rt.placement import WalkPlan


@dataclass(slots=True)
class ScopeRecord:
    """`values`: (rank, walk) that left each persisted tensor. `caches`: by cache, the last walk in which each rank had
    nodes of it; the rank whose sequences are the newest comes last.

    A request has a record of its own until it has finished; then its session's record takes it over.
    """

    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    caches: dict[str, dict[int, int]] = field(default_factory=dict)

    def note(self, plan: WalkPlan, walk_id: int) -> None:
        """A walk is over."""
        for name, rank in plan.persists.items():
            self.values[name] = (rank, walk_id)
        for cache, ranks in plan.caches.items():
            _note_last(self.caches.setdefault(cache, {}), ((rank, walk_id) for rank in ranks))

    def absorb(self, other: ScopeRecord, caches: Collection[str]) -> None:
        """What a finished request leaves: its values, and those `caches` of it that outlive it."""
        self.values.update(other.values)
        for cache, holders in other.caches.items():
            if cache in caches:
                _note_last(self.caches.setdefault(cache, {}), holders.items())

    def holds_on(self, rank: int) -> bool:
        """Whether the newest of anything lies there, or what the newest was made from."""
        return any(holder == rank for holder, _ in self.values.values()) or any(
            rank in holders for holders in self.caches.values()
        )


def fetches_for(rank: int, names: Iterable[str], caches: Iterable[str], records: Sequence[ScopeRecord]) -> list[Fetch]:
    """What `rank` needs of other ranks before a walk that reads `names` and goes on with `caches`.

    `records` are the session's and the request's own, which is the newer one. Of a cache a rank needs what every other
    rank did with it since its own last walk with it, and in that walk itself: two branches of one walk leave different
    sequences on their ranks. Oldest first, which is the order to apply them in.
    """
    fetches = []
    for name in names:
        left = next((record.values[name] for record in reversed(records) if name in record.values), None)
        if left is not None and left[0] != rank:
            fetches.append(Fetch(name, *left))
    for cache in caches:
        holders: dict[int, int] = {}
        for record in records:
            _note_last(holders, record.caches.get(cache, {}).items())
        since = holders.get(rank, -1)
        fetches += [
            Fetch(cache, holder, walk_id, is_cache=True)
            for holder, walk_id in holders.items()
            if holder != rank and walk_id >= since
        ]
    return fetches


def _note_last(holders: dict[int, int], newer: Iterable[tuple[int, int]]) -> None:
    for rank, walk_id in newer:
        holders.pop(rank, None)
        holders[rank] = walk_id
