"""Tokens that came before their walk: another rank was told to begin first, or ours still waits for what it reads."""

from __future__ import annotations

from mstar_rt.errors import ResourceExhausted
from mstar_rt.message import TensorRef, Tokens
from mstar_rt.transport import TensorPlane

MAX_MESSAGES = 4096
MAX_INLINE_BYTES = 64 << 20


class EarlyTokens:
    """Messages by walk, unread: their tensors stay in the sender's memory. Every tensor is released exactly once.

    A walk whose messages go beyond the bounds loses all of them, and fails when it asks for them.
    """

    def __init__(
        self, plane: TensorPlane, max_messages: int = MAX_MESSAGES, max_inline_bytes: int = MAX_INLINE_BYTES
    ) -> None:
        self._plane = plane
        self._max_messages = max_messages
        self._max_inline_bytes = max_inline_bytes
        self._by_walk: dict[int, list[tuple[int, Tokens]]] = {}
        self._overflowed: set[int] = set()
        self._num_messages = 0
        self._num_inline_bytes = 0

    def __len__(self) -> int:
        return self._num_messages

    def hold(self, sender: int, message: Tokens) -> None:
        """`sender` is a rank."""
        if message.walk_id in self._overflowed:
            release_tensors(self._plane, message.tensors)
            return
        self._by_walk.setdefault(message.walk_id, []).append((sender, message))
        self._num_messages += 1
        self._num_inline_bytes += _num_inline_bytes(message)
        if self._num_messages > self._max_messages or self._num_inline_bytes > self._max_inline_bytes:
            self.drop(message.walk_id)
            self._overflowed.add(message.walk_id)

    def take(self, walk_id: int) -> list[tuple[int, Tokens]]:
        """All of the walk with their senders, oldest first; the caller releases their tensors.

        Raises: ResourceExhausted: there were too many, they were dropped.
        """
        if walk_id in self._overflowed:
            self._overflowed.remove(walk_id)
            raise ResourceExhausted(
                f"more than {self._max_messages} messages or {self._max_inline_bytes >> 20} MB came from other ranks "
                "before this walk could begin; send fewer requests at a time"
            )
        messages = self._by_walk.pop(walk_id, [])
        self._num_messages -= len(messages)
        self._num_inline_bytes -= sum(_num_inline_bytes(message) for _, message in messages)
        return messages

    def drop(self, walk_id: int) -> None:
        """The walk has ended before it began here."""
        self._overflowed.discard(walk_id)
        for _, message in self.take(walk_id):
            release_tensors(self._plane, message.tensors)

    def drop_through(self, last_walk_id: int) -> None:
        """None of the walks up to this one will begin here."""
        for walk_id in [walk_id for walk_id in (*self._by_walk, *self._overflowed) if walk_id <= last_walk_id]:
            self.drop(walk_id)


def release_tensors(plane: TensorPlane, refs: list[TensorRef]) -> None:
    """Let go of tensors that are not read."""
    for ref in refs:
        plane.release(ref)


def _num_inline_bytes(message: Tokens) -> int:
    return sum(len(ref.inline) for ref in message.tensors if ref.inline is not None)
