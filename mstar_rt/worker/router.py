"""Takes what a step of a walk brings about to those who read it, and back: server and other ranks."""

from __future__ import annotations

import torch

from mstar_rt.cache.moving import export_delta
from mstar_rt.errors import SharedMemoryExhausted
from mstar_rt.message import Emitted, EmittedGroup, TensorRef, Token, Tokens
from mstar_rt.program import Emission, Progress, Send
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk
from mstar_rt.worker.mail import Draft, Mail
from mstar_rt.worker.parcels import Parcels, open_delta, open_value
from mstar_rt.worker.tensors import one_tensor, receive_tensors, send_tensor, take_back


class Router:
    """One message per step and destination."""

    def __init__(self, endpoint: ControlEndpoint, plane: TensorPlane, device: str, checks_outputs: bool) -> None:
        self._endpoint = endpoint
        self._plane = plane
        self._device = device
        self._checks_outputs = checks_outputs

    def flush(self, walk: ActiveWalk) -> None:
        """Send what the walk has gathered. When it raises, nothing that was not sent is held.

        Raises: SharedMemoryExhausted: no room for the tensors; may be called again.  MstarError: a value that cannot be
                sent.
        """
        if walk.unsent is not None:
            self._post(walk, walk.unsent)
            walk.unsent = None
        emissions, sends = walk.emissions, walk.sends
        walk.emissions, walk.sends = [], []
        fresh = [emission for emission in emissions if (emission.name, emission.iteration) not in walk.emitted]
        if sends:
            mail = self._written(walk, fresh, sends)
            try:
                self._post(walk, mail)
            except SharedMemoryExhausted:
                walk.unsent = mail
                raise
        elif fresh:
            try:
                self._emit(walk, fresh)
            except SharedMemoryExhausted:
                walk.emissions = fresh
                raise

    def _written(self, walk: ActiveWalk, fresh: list[Emission], sends: list[Send]) -> Mail:
        parcels = Parcels(self._plane)
        to_server = [(emission, parcels.add(self._tensor(walk, emission), walk.start.reply_to)) for emission in fresh]
        return Mail(parcels, to_server, _drafts(parcels, walk, sends))

    def _post(self, walk: ActiveWalk, mail: Mail) -> None:
        parcels = mail.parcels
        parcels.put()
        try:
            for emission, index in mail.to_server:
                self._send_emitted(walk, emission, parcels.ref(index))
                parcels.sent(index, walk.start.reply_to)
            for rank, draft in mail.drafts.items():
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


def _drafts(parcels: Parcels, walk: ActiveWalk, sends: list[Send]) -> dict[int, Draft]:
    """What goes to each rank. Pages that have to be there before a value go with it."""
    drafts: dict[int, Draft] = {}
    for send in sends:
        draft = drafts.get(send.rank)
        if draft is None:
            draft = drafts[send.rank] = Draft(parcels.letter(f"worker/{send.rank}"))
        for cache in send.moves:
            if cache not in draft.moved:
                draft.moved.add(cache)
                deltas = export_delta(walk.memory.store(cache), send.rank)
                if deltas:
                    draft.caches.append(draft.letter.delta(cache, deltas))
        draft.tokens.append(Token(send.kind, send.index, send.tag, draft.letter.value(send.value), send.flag))
    return drafts
