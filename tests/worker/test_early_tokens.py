"""Tokens that come before their walk: held within bounds, taken or dropped once, and never leaked."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_rt.errors import ResourceExhausted
from mstar_rt.message import Token, Tokens, TokenValue
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.early import EarlyTokens

LARGE = np.zeros(8 << 10, np.float32)


class Pair:
    """A rank that sends and one that holds."""

    def __init__(self, **bounds: int) -> None:
        hub, planes = InProcessHub(), InProcessPlanes()
        self.sender, self.receiver = hub.endpoint("worker/0"), hub.endpoint("worker/1")
        self.sender_plane, self.plane = planes.plane(self.sender), planes.plane(self.receiver)
        self.early = EarlyTokens(self.plane, **bounds)

    def tokens(self, walk_id: int, array: np.ndarray = LARGE) -> Tokens:
        ref = self.sender_plane.put("float32", array.shape, array, ["worker/1"])
        return Tokens("r", walk_id, [ref], [Token("value", 0, (), TokenValue([0]))])

    def num_held_bytes(self) -> int:
        self.receiver.receive(0.0)
        for envelope in self.sender.receive(0.0):
            self.sender_plane.on_release(envelope.message)  # type: ignore[arg-type]
        return self.sender_plane.num_held_bytes


def test_they_are_taken_in_order_by_their_walk_alone() -> None:
    pair = Pair()
    messages = [pair.tokens(5), pair.tokens(6), pair.tokens(5)]
    for message in messages:
        pair.early.hold(0, message)
    assert pair.early.take(5) == [(0, messages[0]), (0, messages[2])]
    assert pair.early.take(5) == []
    assert len(pair.early) == 1
    pair.early.drop(6)
    pair.early.drop(7)
    assert len(pair.early) == 0


def test_what_is_dropped_is_released() -> None:
    pair = Pair()
    for walk_id in (3, 4, 5):
        pair.early.hold(0, pair.tokens(walk_id))
    pair.early.drop(3)
    assert pair.num_held_bytes() == 2 * LARGE.nbytes
    pair.early.drop_through(4)
    assert pair.num_held_bytes() == LARGE.nbytes
    assert len(pair.early.take(5)) == 1


@pytest.mark.parametrize(("bounds", "small"), [({"max_messages": 3}, False), ({"max_inline_bytes": 100}, True)])
def test_a_walk_beyond_the_bounds_loses_all_and_fails_with_the_reason(bounds: dict[str, int], small: bool) -> None:
    pair = Pair(**bounds)
    array = np.zeros(8, np.float32) if small else LARGE
    pair.early.hold(0, pair.tokens(1))
    for _ in range(4):
        pair.early.hold(0, pair.tokens(2, array))
    assert len(pair.early) == 1, "the other walk keeps its own"
    assert pair.num_held_bytes() == LARGE.nbytes
    with pytest.raises(ResourceExhausted, match="before this walk could begin"):
        pair.early.take(2)
    assert pair.early.take(2) == []
    assert len(pair.early.take(1)) == 1
