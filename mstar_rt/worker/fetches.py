"""What earlier walks left on other ranks: asking for it before a walk begins, and answering those who ask."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from mstar_rt.errors import SharedMemoryExhausted
from mstar_rt.message import CacheDelta, Fetch, Fetched, FetchScope
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.parcels import Parcels, open_delta, open_value
from mstar_rt.worker.room import Delivery, Room
from mstar_rt.worker.scopes import Scopes
from mstar_rt.worker.tensors import receive_tensors

logger = logging.getLogger(__name__)


class Fetches:
    """FetchScope and Fetched, both ways."""

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        device: str,
        rank: int,
        scopes: Scopes,
        room: Room,
    ) -> None:
        self._models = models
        self._endpoint = endpoint
        self._plane = plane
        self._device = device
        self._rank = rank
        self._scopes = scopes
        self._room = room

    def ask(self, walk: ActiveWalk) -> None:
        """Ask for what the walk reads and this rank has no good copy of; `walk.asked` then holds those who owe it."""
        start = walk.start
        wanted: dict[int, list[Fetch]] = {}
        for fetch in start.fetches:
            if fetch.is_cache:
                lost = walk.loaded.memory.to_fetch(
                    start.request_id, fetch.name, fetch.rank, fetch.walk_id, _is_of_request(walk, fetch)
                )
                if lost is None:
                    continue
                walk.asked.setdefault(fetch.rank, {})[fetch.name] = lost
            elif self._scopes.is_fetched(_level(walk, fetch), fetch.name, fetch.walk_id):
                continue
            wanted.setdefault(fetch.rank, []).append(fetch)
        for rank, fetches in wanted.items():
            caches = walk.asked.setdefault(rank, {})
            message = FetchScope(
                request_id=start.request_id,
                walk_id=start.walk_id,
                rank=self._rank,
                model=start.model,
                scope=start.scope,
                names=[fetch.name for fetch in fetches if not fetch.is_cache],
                caches=caches,
                left_by=[fetch.walk_id for fetch in fetches],
            )
            self._endpoint.send(f"worker/{rank}", message)

    def accept(self, walk: ActiveWalk, sender: int, message: Fetched) -> list[str]:
        """Keep what `sender` gave; returns the names that it does not have.

        Raises: MstarError: a tensor cannot be read.
        """
        tensors = receive_tensors(self._plane, message.tensors, "cpu")
        del walk.asked[sender]
        pages = {sequence.pages for packed in message.caches for sequence in packed.sequences}
        values = [t if i in pages else t.to(self._device) for i, t in enumerate(tensors)]
        for fetch in walk.start.fetches:
            if fetch.rank == sender and not fetch.is_cache and fetch.name in message.values:
                value = open_value(message.values[fetch.name], values)
                self._scopes.put_fetched(walk.request_id, _level(walk, fetch), fetch.name, fetch.walk_id, value)
        for packed in message.caches:
            walk.fetched[sender, packed.cache] = open_delta(packed, tensors)
        return message.missing

    def take_in(self, walk: ActiveWalk) -> None:
        """Put the sequences that were fetched into this rank's pages, the oldest source first.

        Raises: PagesExhausted: those that fitted are in, try again for the others.
        """
        for fetch in walk.start.fetches if walk.fetched else ():
            deltas = walk.fetched.get((fetch.rank, fetch.name)) if fetch.is_cache else None
            if deltas is not None:
                of_request = _is_of_request(walk, fetch)
                walk.loaded.memory.apply_fetched(
                    walk.request_id, fetch.name, fetch.rank, fetch.walk_id, of_request, deltas
                )
                del walk.fetched[fetch.rank, fetch.name]

    def answer(self, message: FetchScope) -> None:
        """Send what is held, once there is room for it; what cannot be sent is missing."""
        parcels = Parcels(self._plane)
        try:
            draft = self._written(parcels, message)
        except Exception as error:
            self._lack(message, error)
            return

        def send() -> None:
            try:
                self._send(parcels, message, draft)
            except SharedMemoryExhausted:
                raise
            except Exception as error:
                self._lack(message, error)

        try:
            send()
        except SharedMemoryExhausted as shortage:
            self._room.wait(Delivery(send, lambda error: self._lack(message, error), None, shortage))

    def _written(self, parcels: Parcels, message: FetchScope) -> Fetched:
        """Without its tensors."""
        letter = parcels.letter(_asker(message))
        held = self._scopes.persisted(message.request_id, message.scope)
        values = {name: letter.value(held[name]) for name in message.names if name in held}
        caches: list[CacheDelta] = []
        missing = [name for name in message.names if name not in held]
        loaded = self._models.get(message.model)
        for cache, lost in message.caches.items():
            if loaded is None or cache not in loaded.pools:
                missing.append(cache)
                continue
            deltas = loaded.memory.export_committed(message.request_id, message.scope, cache, message.rank, lost)
            caches.append(letter.delta(cache, deltas))
        return Fetched(message.request_id, message.walk_id, self._rank, [], values, caches, missing)

    def _send(self, parcels: Parcels, message: FetchScope, draft: Fetched) -> None:
        parcels.put()
        try:
            letter = parcels.letter(_asker(message))
            self._endpoint.send(_asker(message), msgspec.structs.replace(draft, tensors=letter.refs()))
            letter.sent()
        finally:
            parcels.take_back()

    def _lack(self, message: FetchScope, error: Exception) -> None:
        logger.warning("cannot give rank %d what scope %s holds: %r", message.rank, message.scope, error)
        missing = [*message.names, *message.caches]
        fetched = Fetched(message.request_id, message.walk_id, self._rank, [], {}, [], missing)
        self._endpoint.send(_asker(message), fetched)


def _asker(message: FetchScope) -> str:
    return f"worker/{message.rank}"


def _is_of_request(walk: ActiveWalk, fetch: Fetch) -> bool:
    """Whether an earlier walk of the same request left it."""
    return fetch.walk_id >= walk.start.age


def _level(walk: ActiveWalk, fetch: Fetch) -> str:
    """Where a copy of it belongs."""
    return walk.request_id if _is_of_request(walk, fetch) else walk.start.scope
