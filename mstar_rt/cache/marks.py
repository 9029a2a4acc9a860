"""What other ranks know of one sequence."""

from __future__ import annotations

import itertools
import secrets
from bisect import bisect_left
from collections.abc import Sequence

Peer = int
"""The rank of another worker."""

Write = tuple[int, int]
"""(first position, stamp): the positions up to the next write came into being together, on one rank."""

_next_stamp = itertools.count(secrets.randbits(61) + 1).__next__
"""Numbers that no other process gives out; 0 is none of them."""


class PeerMarks:
    """Which state of a sequence each peer has, and how much of that is still as it is here.

    `version` stamps the state; 0 until it has one. `settled` leading positions are stamped by `writes`: two copies of a
    sequence are equal as far as their writes are. What lies behind `settled` nobody else has seen.

    A peer may have got another state from a third rank in the meantime. That does no harm: what nobody has written
    anew since then is in that state too, as a write that replaces another has another stamp.
    """

    __slots__ = ("_agreed", "_before", "_version_of", "settled", "version", "writes")

    def __init__(self) -> None:
        self.version = 0
        self.settled = 0
        self.writes: list[Write] = []
        self._agreed: dict[Peer, int] = {}
        self._version_of: dict[Peer, int] = {}
        # What held before the last transfer to a peer that has not shown yet that it got it. None: nothing was known.
        self._before: dict[Peer, tuple[int, int] | None] = {}

    def __bool__(self) -> bool:
        """Whether any other rank may have heard of the sequence."""
        return bool(self._version_of or self._before)

    def stamp(self, length: int) -> None:
        """The sequence is `length` long and stays so for as long as this version lives."""
        if self.version and length == self.settled:
            return
        self.version = _next_stamp()
        if not self:
            self.settled = 0
            self.writes.clear()
        if length > self.settled:
            self.writes.append((self.settled, self.version))
        self.settled = length

    def fall(self, length: int) -> None:
        """Positions from `length` on are forgotten here. Nothing happens to what was appended since the last stamp."""
        if self.settled <= length:
            return
        self.settled = length
        self.version = 0
        while self.writes and self.writes[-1][0] >= length:
            self.writes.pop()
        for peer, agreed in self._agreed.items():
            self._agreed[peer] = min(agreed, length)
        for peer, before in self._before.items():
            if before is not None:
                self._before[peer] = min(before[0], length), before[1]

    def begin_again(self) -> None:
        """The sequence is another one now, empty or given up."""
        self.fall(0)
        self.version = 0

    def copy(self) -> PeerMarks:
        twin = PeerMarks()
        twin.version, twin.settled, twin.writes = self.version, self.settled, list(self.writes)
        twin._agreed, twin._version_of, twin._before = dict(self._agreed), dict(self._version_of), dict(self._before)
        return twin

    # --- towards a peer ----------------------------------------------------------------------------------------------

    def first_change(self, peer: Peer) -> int | None:
        """Where the stamped state begins to differ from what the peer has; None if the peer has this very state."""
        return None if self._version_of.get(peer) == self.version else self._agreed.get(peer, 0)

    def writes_from(self, start: int) -> Sequence[Write]:
        """Those from `start` on, after the one that position `start` - 1 belongs to."""
        return self.writes[max(0, bisect_left(self.writes, (start,)) - (start > 0)) :]

    def agree(self, peer: Peer) -> None:
        """The peer has this state."""
        self._agreed[peer], self._version_of[peer] = self.settled, self.version
        self._before.pop(peer, None)

    def agree_unless_lost(self, peer: Peer) -> None:
        """Like agree, until the peer says which it was."""
        before = (self._agreed[peer], self._version_of[peer]) if peer in self._version_of else None
        self.agree(peer)
        self._before[peer] = before

    def confirm(self, peer: Peer) -> None:
        """The last transfer to the peer was taken in there."""
        self._before.pop(peer, None)

    def take_back(self, peer: Peer) -> None:
        """The last transfer to the peer was not taken in there."""
        if peer not in self._before:
            return
        before = self._before.pop(peer)
        if before is None:
            del self._agreed[peer], self._version_of[peer]
        else:
            self._agreed[peer], self._version_of[peer] = before

    # --- from a peer -------------------------------------------------------------------------------------------------

    def can_continue(self, start: int, writes: Sequence[Write]) -> bool:
        """Whether the positions before `start` here are those that `writes_from(start)` of the sender follow."""
        return start == 0 or (start <= self.settled and list(self.writes_from(start)[:1]) == list(writes[:1]))

    def num_equal(self, start: int, writes: Sequence[Write], length: int) -> int:
        """How many leading positions here are those of a sequence that is `length` long, with these writes."""
        mine, theirs = self.writes_from(start), writes
        num_same = 0
        for my_write, their_write in zip(mine, theirs, strict=False):
            if my_write != their_write:
                break
            num_same += 1
        my_end = mine[num_same][0] if num_same < len(mine) else self.settled
        their_end = theirs[num_same][0] if num_same < len(theirs) else length
        return min(my_end, their_end)

    def take_over(self, peer: Peer, version: int, start: int, writes: Sequence[Write], length: int) -> None:
        """The sequence is as the peer has it now."""
        del self.writes[len(self.writes) - len(self.writes_from(start)) :]
        self.writes += writes
        self.version, self.settled = version, length
        self.agree(peer)
