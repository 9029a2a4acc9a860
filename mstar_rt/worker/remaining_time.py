"""What a walk still needs from one of its nodes on, as walks of its kind did. Pure: no clock, no torch.

Time is that of the steps that a walk took part in, so that waiting for others is not mistaken for work. Walks are of
one kind if all that sets their length agrees: the walk, loop counts and other whole numbers of the request, and the
shapes of its inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Position = tuple[int, tuple[int, ...]]
"""A node of the program and its loop iterations."""

Mark = tuple[Position, int, int]
"""A position, what the walk had run when it came there, and what of that every walk of its kind runs."""

MAX_KINDS = 512
MAX_MARKS = 256
"""Positions that are remembered of one walk: beyond them nothing is known."""

TRIAL_EVERY = 8
"""Of so many walks that look hopeless one is begun."""

_RISE, _FALL = 2, 5  # as powers of two: a fourth, and a thirty-second of the way
RETURN_NS = 1_000_000
"""What the way back takes, from the last step to the client."""


class Pace:
    """Walks of one kind. `needed` is, by position, what they need from there on in nanoseconds: rather too much than
    too little, with the way back; and what they need even if all goes well. Nothing is known of other positions.
    """

    __slots__ = ("_num_finished", "_num_hopeless", "_usual_ns", "needed")

    def __init__(self) -> None:
        self.needed: dict[Position, tuple[int, int]] = {}
        self._num_finished = 0
        self._num_hopeless = 0
        self._usual_ns: dict[Position, int] = {}

    def is_doubtful(self) -> bool:
        """Asked of each walk that looks hopeless: whether this one is to run all the same. Estimates from a time when
        the machine was slow would never be corrected if nothing ran that contradicts them."""
        self._num_hopeless += 1
        return self._num_hopeless % TRIAL_EVERY == 0

    def finished(self, marks: Sequence[Mark], ran_ns: int, sure_ns: int) -> None:
        """A walk has run to its end. The first one does not count: it loads, compiles and captures.

        What is usual follows up quickly and down slowly, and a single outlier counts as twice the usual at most; what
        is least follows down at once and up slowly.
        """
        self._num_finished += 1
        if self._num_finished == 1:
            return
        for position, ran_before_ns, sure_before_ns in marks:
            now_ns, sure_now_ns = ran_ns - ran_before_ns, sure_ns - sure_before_ns
            usual_ns = self._usual_ns.get(position)
            if usual_ns is None:
                usual_ns, least_ns = now_ns, sure_now_ns
            else:
                least_ns = self.needed[position][1]
                if now_ns > usual_ns:
                    usual_ns += min(now_ns - usual_ns, usual_ns) >> _RISE
                else:
                    usual_ns -= (usual_ns - now_ns) >> _FALL
                if sure_now_ns < least_ns:
                    least_ns = sure_now_ns
                else:
                    least_ns += (sure_now_ns - least_ns) >> _FALL
            self._usual_ns[position] = usual_ns
            self.needed[position] = (usual_ns + (usual_ns >> 3) + RETURN_NS, least_ns)


class RemainingTime:
    """The pace of every kind of walk, the newest kinds of many."""

    def __init__(self) -> None:
        self._paces: dict[Hashable, Pace] = {}

    def pace(self, kind: Hashable) -> Pace:
        pace = self._paces.get(kind)
        if pace is None:
            if len(self._paces) >= MAX_KINDS:
                self._paces.pop(next(iter(self._paces)))
            pace = self._paces[kind] = Pace()
        return pace
