"""The share of step time that less critical classes keep while a more critical one would take all of it."""

from __future__ import annotations

from mstar_rt.worker.unit import CRITICALITIES

PATIENCE_NS = 20_000_000
"""How much time in advance the gaps that lower classes found pay for, and how much they may be owed beyond the moment
that harms nobody."""


class LowerShare:
    """What the classes below each class are owed, in nanoseconds.

    While they wait, every step of the class adds `share` of its time to what they are owed; every step of theirs takes
    off what it exceeds their share by. Where they find gaps they are owed nothing, so the share costs nothing. Where
    they find none, at most (2 * PATIENCE_NS + one step of theirs) / share pass between two steps of theirs.
    """

    def __init__(self, share: float) -> None:
        self.is_even = True  # nobody is owed anything: nothing changes before somebody waits
        self._share = share
        self._owed_ns = [-float(PATIENCE_NS)] * (len(CRITICALITIES) - 1)

    def ran(self, kind: int, least_critical_ready: int, duration_ns: int) -> None:
        """A step of class `kind`; `least_critical_ready` is the lowest class that has waited meanwhile."""
        owed_ns = self._owed_ns
        if kind < least_critical_ready:
            owed_ns[kind] += self._share * duration_ns
        if kind:
            got_ns = (1 - self._share) * duration_ns
            for above in range(kind):
                owed_ns[above] = max(-float(PATIENCE_NS), owed_ns[above] - got_ns)
        self.is_even = max(owed_ns) <= -PATIENCE_NS

    def is_owed(self, kind: int) -> bool:
        """Whether what is below the class should run, if that harms nobody in it."""
        return self._owed_ns[kind] > 0

    def is_overdue(self, kind: int) -> bool:
        """Whether what is below the class runs in any case."""
        return self._owed_ns[kind] > PATIENCE_NS
