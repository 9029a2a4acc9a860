"""The cached sequences of one model's requests on this rank, for as long as each cache's lifetime says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mstar_rt.cache.moving import Delta, apply_deltas, export_on_request
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import FailedPrecondition
from mstar_rt.model import KVSpec


@dataclass(slots=True)
class _Level:
    """Sequences by cache, and what was fetched into them: by (cache, rank), the walk that had left it there.

    `asked` is what was asked for last; where it is not what was `taken` in, the answer was lost.
    """

    stores: dict[str, SequenceStore] = field(default_factory=dict)
    taken: dict[tuple[str, int], int] = field(default_factory=dict)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)

    def replace(self, cache: str, store: SequenceStore) -> None:
        previous = self.stores.get(cache)
        if previous is not None and previous is not store:
            previous.release_all()
        self.stores[cache] = store

    def release(self) -> None:
        for store in self.stores.values():
            store.release_all()
        self.stores.clear()


@dataclass(slots=True)
class _Session(_Level):
    """What successful requests left. `writer` is the request whose sequences of a cache are not the session's yet."""

    writer: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Request(_Level):
    """What successful walks left. A request without a session has an empty one of its own, which nothing enters."""

    scope: str = ""
    session: _Session = field(default_factory=_Session)
    walks: list[WalkMemory] = field(default_factory=list)


class WalkMemory:
    """The working sequences of one walk: copies, so that a walk that fails or starts again leaves no trace."""

    def __init__(self, memory: RequestMemory, request_id: str, caches: Collection[str]) -> None:
        self._memory = memory
        self._request_id = request_id
        self._caches = caches
        self._stores: dict[str, SequenceStore] = {}

    def store(self, cache: str) -> SequenceStore:
        """The sequences that the walk's nodes read and write: a copy of what the cache's lifetime has kept so far, made
        when first asked for."""
        store = self._stores.get(cache)
        if store is None:
            assert cache in self._caches, f"the walk began with the caches {list(self._caches)}, not {cache!r}"
            store = self._stores[cache] = self._memory._working_copy(self._request_id, cache)
        return store

    def num_page_holds(self, cache: str) -> int:
        """Pages of the working sequences; those that are shared with what was kept before count too."""
        store = self._stores.get(cache)
        return store.num_page_holds if store is not None else 0

    def discard(self) -> None:
        """The walk failed, was cancelled or will start again: as if it had not begun. Twice is the same as once."""
        for store in self._stores.values():
            store.release_all()
        self._stores.clear()

    def release_walk_stores(self) -> None:
        """This rank's part is done: what does not outlive the walk gives its pages back at once."""
        for cache in [cache for cache in self._stores if self._memory._ends_with_walk(cache)]:
            self._stores.pop(cache).release_all()
        for cache, store in self._stores.items():
            if self._memory._kept[cache]:
                store.retain(self._memory._kept[cache])

    def commit(self) -> None:
        """The walk is over everywhere: the next walk of the request goes on from here. Once, and not after discard."""
        self.release_walk_stores()
        for cache in self._caches:
            if not self._memory._ends_with_walk(cache):
                self._memory._keep(self._request_id, cache, self.store(cache))
        self._stores = {}
        self._caches = ()


class RequestMemory:
    """All sequences of one model on this rank.

    Three levels: a walk works on copies; what it leaves is the request's; what a request leaves in caches of lifetime
    "session" is the session's. A level is dropped, or takes the place of the one below, as a whole, so that a failure
    leaves what was there before. Copies share pages until they are written.

    The same levels exist on all ranks of a request, and what is known of other ranks is part of a level: what a rank
    forgets with a failed request, its peers forget as well.
    """

    def __init__(self, caches: Mapping[str, KVSpec], pools: Mapping[str, KVPool]) -> None:
        self._lifetimes = {name: spec.lifetime for name, spec in caches.items()}
        self._kept = {name: spec.kept for name, spec in caches.items()}
        self._pools = pools
        self._requests: dict[str, _Request] = {}
        self._sessions: dict[str, _Session] = {}

    @property
    def num_scopes(self) -> int:
        """Requests and sessions that hold something, or may."""
        return len(self._requests) + len(self._sessions)

    def requests_with_pages(self, cache: str) -> list[str]:
        """Requests whose earlier walks left sequences of that cache here."""
        return [
            request_id
            for request_id, request in self._requests.items()
            if cache in request.stores and request.stores[cache].num_page_holds
        ]

    def num_session_page_holds(self, cache: str) -> int:
        """Pages that open sessions keep in that cache."""
        stores = [session.stores[cache] for session in self._sessions.values() if cache in session.stores]
        return sum(store.num_page_holds for store in stores)

    def begin(self, request_id: str, scope: str, caches: Collection[str]) -> WalkMemory:
        """A walk of a request starts, or starts again.

        Args: scope: the request's session, or the request itself. caches: those that nodes of this rank's part of the
              walk use, whether they will run or not.
        Raises: FailedPrecondition: another request of the session has sequences of one of these caches that are not the
              session's yet; nothing changed.
        """
        request = self._requests.get(request_id) or self._new_request(request_id, scope)
        assert request.scope == scope, (request.scope, scope)
        for cache in caches:
            if request.session.writer.get(cache, request_id) != request_id:
                raise FailedPrecondition(
                    f"two requests of one session use its cache {cache!r} at once: start one when the other has ended"
                )
        self._requests[request_id] = request
        request.session.writer.update((cache, request_id) for cache in caches if self._lifetimes[cache] == "session")
        walk = WalkMemory(self, request_id, caches)
        request.walks.append(walk)
        return walk

    def end_request(self, request_id: str, keep: bool) -> None:
        """The request is over. `keep`: its session goes on from what its committed walks left.

        Walks that were not committed are discarded. A request that never began here is none to end.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        for walk in request.walks:
            walk.discard()
        session = request.session
        if keep and self._sessions.get(request.scope) is session:
            for cache in [cache for cache in request.stores if self._lifetimes[cache] == "session"]:
                session.replace(cache, request.stores.pop(cache))
                session.taken.update(_of_cache(cache, request.taken))
                session.asked.update(_of_cache(cache, request.asked))
        request.release()
        session.writer = {cache: writer for cache, writer in session.writer.items() if writer != request_id}

    def release_scope(self, scope: str) -> None:
        """Free what the session, or the request without one, holds. A request of a released session keeps nothing."""
        self.end_request(scope, keep=False)
        session = self._sessions.pop(scope, None)
        if session is not None:
            session.release()

    # --- between ranks -----------------------------------------------------------------------------------------------

    def export_committed(self, request_id: str, scope: str, cache: str, peer: int, lost: bool) -> list[Delta]:
        """What successful walks left here and `peer`, which asks for it, does not have; see export_on_request."""
        request = self._requests.get(request_id)
        level: _Level | None = self._sessions.get(scope) if request is None else request.session
        if request is not None and cache in request.stores:
            level = request
        store = level.stores.get(cache) if level is not None else None
        return export_on_request(store, peer, lost) if store is not None else []

    def to_fetch(self, request_id: str, cache: str, rank: int, walk_id: int, of_request: bool) -> bool | None:
        """What to ask `rank` for, where the walk `walk_id`, of this request or of an earlier one, left sequences.

        None: nothing, the copy here is still good. Else what changed; True says that the rank's last answer was lost.
        """
        level, key = self._target(request_id, cache, of_request), (cache, rank)
        taken = level.taken.get(key)
        if taken == walk_id:
            return None
        was_lost = level.asked.get(key) != taken
        level.asked[key] = walk_id
        return was_lost

    def apply_fetched(
        self, request_id: str, cache: str, rank: int, walk_id: int, of_request: bool, deltas: Sequence[Delta]
    ) -> None:
        """Take in the answer to what to_fetch said.

        Raises: what cache.moving.apply_deltas does; nothing changed.
        """
        level = self._target(request_id, cache, of_request)
        if cache not in level.stores:
            level.stores[cache] = SequenceStore(self._pools[cache])
        apply_deltas(level.stores[cache], rank, deltas)
        level.taken[cache, rank] = walk_id

    def _target(self, request_id: str, cache: str, of_request: bool) -> _Level:
        """Where sequences go that another rank left in the same request, or in an earlier one of the session.

        What a request leaves in its session is left on all ranks or on none, so a copy of it stays good if this request
        fails.
        """
        request = self._requests[request_id]
        is_in_session = self._lifetimes[cache] == "session" and request.scope != request_id
        if is_in_session and not of_request and cache not in request.stores:
            return request.session
        if cache not in request.stores:
            self._keep(request_id, cache, self._working_copy(request_id, cache))
        return request

    def _new_request(self, request_id: str, scope: str) -> _Request:
        if scope == request_id or "session" not in self._lifetimes.values():
            return _Request(scope=scope)
        return _Request(scope=scope, session=self._sessions.setdefault(scope, _Session()))

    # --- for WalkMemory ----------------------------------------------------------------------------------------------

    def _ends_with_walk(self, cache: str) -> bool:
        return self._lifetimes[cache] == "walk"

    def _working_copy(self, request_id: str, cache: str) -> SequenceStore:
        if self._ends_with_walk(cache):
            return SequenceStore(self._pools[cache])
        request = self._requests[request_id]
        for level in (request, request.session):
            if cache in level.stores:
                return level.stores[cache].fork_all()
        return SequenceStore(self._pools[cache])

    def _keep(self, request_id: str, cache: str, store: SequenceStore) -> None:
        request = self._requests[request_id]
        if cache not in request.stores:
            request.taken.update(_of_cache(cache, request.session.taken))
            request.asked.update(_of_cache(cache, request.session.asked))
        request.replace(cache, store)


def _of_cache(cache: str, walks: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    return {key: walk_id for key, walk_id in walks.items() if key[0] == cache}
