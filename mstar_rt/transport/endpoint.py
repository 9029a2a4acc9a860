"""The control plane as its users see it: addressed endpoints that send and receive records.

An address is a word, with an optional number after a slash: "server", "conductor", "worker/0".

Semantics that every implementation keeps:
- `send` never blocks and queues without limit: two peers that burst at each other both progress.
- Messages from one endpoint to another arrive in the order sent, at most once.
- Messages to a peer that is not there (yet, or between a crash and a restart) wait in the sender and reach
  the peer once it opens its endpoint; `forget_peer` throws them away. What a dead peer had received but not
  read is lost with it.
- A message that cannot be decoded is counted in `num_rejected`, logged and dropped; it never stops the
  receiver.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Message, decode

MAX_DRAIN = 1024
"""Messages that one receive call returns at most, so that a flood cannot keep a receiver from its other
work.
"""

_ADDRESS = re.compile(r"[a-z][a-z0-9_]{0,23}(/[0-9]{1,6})?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A received record. `sender_pid` tells a restarted sender from its dead predecessor under the same
    address.
    """

    sender: str
    message: Message
    sender_pid: int


class ControlEndpoint(Protocol):
    """One party's end of the control plane. `send` may be called from any thread; the rest from one thread
    only.
    """

    @property
    def address(self) -> str: ...

    @property
    def num_rejected(self) -> int:
        """Messages that arrived and could not be decoded."""
        ...

    def send(self, to: str, message: Message) -> None:
        """Queue a record for `to` and return at once.

        Raises:  Unavailable: this endpoint is closed.
                 InvalidArgument: `to` is not an address, or the record cannot be encoded (see
                 message.encode).
        """
        ...

    def receive(self, timeout_s: float | None) -> list[Envelope]:
        """All that has arrived (at most MAX_DRAIN, oldest first); waits up to `timeout_s` for the first one.

        [] when the time is up; 0 only looks; None waits for ever. The wait is rounded up to a whole
        millisecond.
        """
        ...

    async def receive_async(self) -> list[Envelope]:
        """All that has arrived (at most MAX_DRAIN, never empty); waits for the first. Cancelling it loses
        nothing.
        """
        ...

    def before_receive(self, action: Callable[[], None]) -> None:
        """Run `action` at the start of each later receive call; the tensor plane sends its batched releases
        there.
        """
        ...

    def forget_peer(self, address: str) -> None:
        """Drop what still waits to be sent to a dead peer, so that its successor does not get it."""
        ...

    def close(self) -> None:
        """Stop receiving and give up the address. Idempotent."""
        ...


def check_address(address: str) -> str:
    """`address` itself.

    Raises:  InvalidArgument: it is no address.
    """
    if _ADDRESS.fullmatch(address) is None:
        raise InvalidArgument(f"{address!r} is not an address: expected a lower-case word or one like 'worker/0'")
    return address


def frame_header(address: str) -> bytes:
    """What goes before each record's bytes: one byte of length, then the sender's address and process id."""
    header = f"{address} {os.getpid()}".encode()
    return bytes([len(header)]) + header


class EnvelopeOpener:
    """Turns received frames into envelopes, and counts those that are not frames of ours."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._senders: dict[bytes, tuple[str, int]] = {}
        self.num_rejected = 0

    def open(self, frames: Iterable[bytes]) -> list[Envelope]:
        envelopes = []
        for frame in frames:
            try:
                envelopes.append(self._open_one(frame))
            except InvalidArgument as error:
                self.num_rejected += 1
                _log.warning("%s dropped a message: %s", self._address, error)
        return envelopes

    def _open_one(self, frame: bytes) -> Envelope:
        end = 1 + frame[0] if frame else 0
        known = self._senders.get(frame[1:end])
        if known is None:
            known = _parse_header(frame[1:end])
            self._senders[frame[1:end]] = known
        return Envelope(known[0], decode(memoryview(frame)[end:]), known[1])


def _parse_header(header: bytes) -> tuple[str, int]:
    address, _, pid = header.decode("ascii", "replace").partition(" ")
    if not (pid.isascii() and pid.isdigit()):
        raise InvalidArgument(f"a message came with {header[:40]!r} as sender, expected an address and a process id")
    return check_address(address), int(pid)
