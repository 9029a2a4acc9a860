"""Takes what a step of a walk brings about to those who read it, and back: server and other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mstar_rt.cache.moving import export_delta
from mstar_rt.errors import SharedMemoryExhausted
from mstar_rt.message import CacheDelta, Emitted, EmittedGroup, TensorRef, Token, Tokens
from mstar_rt.program import Emission, Progress, Send
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.mail import Moved, Piece
from mstar_rt.worker.parcels import Letter, Parcels, open_delta, open_value
from mstar_rt.worker.tensors import one_tensor, receive_tensors, send_tensor, take_back


@dataclass(slots=True)
class _Draft:
    """The message to one rank, before its tensors are put."""

    letter: Letter
    caches: list[CacheDelta] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)


class Router:
    """One message per step and destination, if there is room."""

    def __init__(self, endpoint: ControlEndpoint, plane: TensorPlane, device: str, checks_outputs: bool) -> None:
        self._endpoint = endpoint
        self._plane = plane
        self._device = device
        self._checks_outputs = checks_outputs

    def flush(self, walk: ActiveWalk) -> None:
        """Send what the walk has gathered, together if there is room for all of it. When it raises, nothing that was
        not sent is held.

        Raises: SharedMemoryExhausted: no room for the first of the walk's `unsent`, to be called again.
                MstarError: a value that cannot be sent.
        """
        if walk.unsent:
            self._post_unsent(walk)
        emissions, sends = walk.emissions, walk.sends
        walk.emissions, walk.sends = [], []
        fresh = [emission for emission in emissions if (emission.name, emission.iteration) not in walk.emitted]
        if sends:
            pieces = _pieces(walk, fresh, sends)
            try:
                self._post(walk, pieces)
            except SharedMemoryExhausted:
                walk.unsent = pieces
                self._post_unsent(walk)
        elif fresh:
            try:
                self._emit(walk, fresh)
            except SharedMemoryExhausted:
                walk.unsent = [Piece(emission) for emission in fresh]
                self._post_unsent(walk)

    def _post_unsent(self, walk: ActiveWalk) -> None:
        """One by one: what a step makes in all may be more than there is memory."""
        while walk.unsent:
            self._post(walk, walk.unsent[:1])
            walk.unsent.pop(0)

    def _post(self, walk: ActiveWalk, pieces: Sequence[Piece]) -> None:
        """All or nothing; one message to each rank."""
        reply_to, parcels = walk.start.reply_to, Parcels(self._plane)
        to_server: list[tuple[Emission, int]] = []
        drafts: dict[int, _Draft] = {}
        for piece in pieces:
            if piece.emission is not None:
                to_server.append((piece.emission, parcels.add(self._tensor(walk, piece.emission), reply_to)))
            elif piece.send is not None:
                send, draft = piece.send, drafts.get(piece.send.rank)
                if draft is None:
                    draft = drafts[send.rank] = _Draft(parcels.letter(f"worker/{send.rank}"))
                draft.caches += [draft.letter.delta(cache, deltas) for cache, deltas in piece.moved]
                draft.tokens.append(Token(send.kind, send.index, send.tag, draft.letter.value(send.value), send.flag))
        parcels.put()
        try:
            for emission, index in to_server:
                self._send_emitted(walk, emission, parcels.ref(index))
                parcels.sent(index, reply_to)
            for rank, draft in drafts.items():
                refs = draft.letter.refs()
                message = Tokens(walk.request_id, walk.walk_id, refs, draft.tokens, draft.caches)
                self._endpoint.send(f"worker/{rank}", message)
                draft.letter.sent()
        finally:
            parcels.take_back()

    def receive(self, walk: ActiveWalk, sender: int, message: Tokens) -> list[Progress]:
        """Hand a message from the rank `sender` to the walk.

        Raises: MstarError: a tensor cannot be read, or the message does not fit the walk.
        """
        assert walk.run is not None
        tensors = receive_tensors(self._plane, message.tensors, "cpu")
        for packed in message.caches:
            walk.pending.setdefault(packed.cache, []).append((sender, open_delta(packed, tensors)))
        if self._device != "cpu":
            pages = {sequence.pages for packed in message.caches for sequence in packed.sequences}
            tensors = [t if i in pages else t.to(self._device) for i, t in enumerate(tensors)]
        return [
            walk.run.receive(token.kind, token.index, token.tag, open_value(token.value, tensors), token.flag)
            for token in message.tokens
        ]

    def _emit(self, walk: ActiveWalk, emissions: list[Emission]) -> None:
        """The usual case, a walk whose step concerns no other rank: one message, with all tensors or none."""
        start = walk.start
        consumers = (start.reply_to,)
        records: list[Emitted] = []
        try:
            for emission in emissions:
                ref = send_tensor(self._plane, self._tensor(walk, emission), consumers)
                index = len(walk.emitted) + len(records)
                records.append(Emitted(start.request_id, start.walk, index, emission.name, emission.iteration, ref))
            self._endpoint.send(start.reply_to, records[0] if len(records) == 1 else EmittedGroup(records))
        except BaseException:
            for record in records:
                take_back(self._plane, record.tensor, consumers)
            raise
        walk.emitted.update((record.name, record.iteration) for record in records)

    def _send_emitted(self, walk: ActiveWalk, emission: Emission, ref: TensorRef) -> None:
        start = walk.start
        record = Emitted(start.request_id, start.walk, len(walk.emitted), emission.name, emission.iteration, ref)
        self._endpoint.send(start.reply_to, record)
        walk.emitted.add((emission.name, emission.iteration))

    def _tensor(self, walk: ActiveWalk, emission: Emission) -> torch.Tensor:
        tensor = one_tensor(emission.value)
        if self._checks_outputs:
            fault = walk.loaded.checks.check_emission(walk.start.walk, emission.name, tensor)
            if fault is not None:
                raise fault
        return tensor


def _pieces(walk: ActiveWalk, fresh: list[Emission], sends: list[Send]) -> list[Piece]:
    """Pages that have to be there before a value go with it."""
    pieces = [Piece(emission) for emission in fresh]
    moved: set[tuple[int, str]] = set()
    for send in sends:
        changes: list[Moved] = []
        for cache in send.moves:
            if (send.rank, cache) not in moved:
                moved.add((send.rank, cache))
                if deltas := export_delta(walk.memory.store(cache), send.rank):
                    changes.append((cache, deltas))
        pieces.append(Piece(send=send, moved=changes))
    return pieces
