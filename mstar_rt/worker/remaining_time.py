"""What a walk still needs from one of its nodes on, as walks of its kind did. Pure: no clock, no torch.

Time is that of the steps that a walk took part in, so that waiting for others is not mistaken for work. Walks are of
one kind if all that sets their length agrees: the walk, loop counts and other whole numbers of the request, and the
shapes of its inputs.

Warm-ups run while others warm up beside them and everything is slow. What they took only orders what is ready, until
walks of somebody who waits have been measured; by itself it never says that a walk cannot be in time. But where such
walks run out of time again and again before any was measured to its end, their beginnings tell how slow it was then.
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

ENOUGH = 3
"""So many walks that are no warm-ups have to have come to a position, before what they needed from there calls others
hopeless."""

TRIAL_EVERY = 8
"""Of so many walks that look hopeless one is begun."""

_RISE, _FALL = 2, 5  # as powers of two: a fourth, and a thirty-second of the way
RETURN_NS = 1_000_000
"""What the way back takes, from the last step to the client."""


class Pace:
    """Walks of one kind. `needed` is, by position, what they need from there on in nanoseconds: rather too much than
    too little, with the way back; and what they need even if all goes well, 0 while that is not known well. Nothing is
    known of other positions.
    """

    __slots__ = ("_has_run", "_num_hopeless", "_num_stopped", "_seen", "_speed", "needed")

    def __init__(self) -> None:
        self.needed: dict[Position, tuple[int, int]] = {}
        self._has_run = False
        self._num_hopeless = self._num_stopped = 0
        self._speed = 1.0  # what walks that ran out of time took for one nanosecond of a warm-up, at the least
        self._seen: dict[Position, _Seen] = {}

    def is_doubtful(self) -> bool:
        """Asked of each walk that looks hopeless: whether this one is to run all the same. Estimates from a time when
        the machine was slow would never be corrected if nothing ran that contradicts them."""
        self._num_hopeless += 1
        return self._num_hopeless % TRIAL_EVERY == 0

    def finished(self, marks: Sequence[Mark], ran_ns: int, sure_ns: int, is_warm_up: bool = False) -> None:
        """A walk has run to its end. The first one does not count: it loads, compiles and captures."""
        if not self._has_run:
            self._has_run = True
            return
        for position, ran_before_ns, sure_before_ns in marks:
            seen = self._seen.get(position)
            if seen is None:
                seen = self._seen[position] = _Seen()
            seen.add(ran_ns - ran_before_ns, sure_ns - sure_before_ns, is_warm_up)
            self._note(position, seen)

    def stopped(self, marks: Sequence[Mark], ran_ns: int, position: Position) -> None:
        """A walk that had begun was too late when it came to `position`."""
        here = self._seen.get(position)
        if not marks or here is None or here.num >= ENOUGH:
            return
        begin = self._seen.get(marks[0][0])
        if begin is None or begin.usual_ns <= here.usual_ns:
            return
        self._num_stopped += 1
        if not begin.num and not here.num:
            self._speed = min(self._speed, ran_ns / (begin.usual_ns - here.usual_ns))
        if self._num_stopped >= ENOUGH:
            for other, seen in self._seen.items():
                self._note(other, seen)

    def _note(self, position: Position, seen: _Seen) -> None:
        usual_ns, least_ns = seen.usual_ns, seen.least_ns
        if self._num_stopped < ENOUGH:
            least_ns = least_ns if seen.num >= ENOUGH else 0
        elif not seen.num:
            least_ns = int(least_ns * self._speed)
        self.needed[position] = usual_ns + (usual_ns >> 3) + RETURN_NS, least_ns


class _Seen:
    """What walks needed from one position on. `num` of them were no warm-ups, as far as that matters.

    What is usual follows up quickly and down slowly; what is least follows down at once and up slowly. A single outlier
    counts as twice what was known at most. Of warm-ups alone the quickest counts, and the first other walk instead.
    """

    __slots__ = ("least_ns", "num", "usual_ns")

    def __init__(self) -> None:
        self.num = self.usual_ns = self.least_ns = 0

    def add(self, now_ns: int, sure_now_ns: int, is_warm_up: bool) -> None:
        if is_warm_up:
            if not self.num:
                self.usual_ns = min(now_ns, self.usual_ns or now_ns)
                self.least_ns = min(sure_now_ns, self.least_ns or sure_now_ns)
            return
        self.num += 1
        if self.num == 1:
            self.usual_ns, self.least_ns = now_ns, sure_now_ns
            return
        usual_ns, least_ns = self.usual_ns, self.least_ns
        if now_ns > usual_ns:
            self.usual_ns += min(now_ns - usual_ns, usual_ns) >> _RISE
        else:
            self.usual_ns -= (usual_ns - now_ns) >> _FALL
        if sure_now_ns < least_ns:
            self.least_ns = sure_now_ns
        else:
            self.least_ns += min(sure_now_ns - least_ns, least_ns) >> _FALL


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
