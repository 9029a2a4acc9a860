"""How often a robot wants a chunk."""

from __future__ import annotations

SLACK = 0.5
"""Control periods by which an observation may come early: robots are not exact."""


class Replanning:
    """An observation is not due while, since the last one that a chunk was begun for, less than `replan_every` actions
    were executed and also less than `replan_every` control periods (less SLACK) went by. So a robot that holds, or does
    not say where it is, is answered as often as one that moves. Without `replan_every` every observation is due.
    """

    def __init__(self, replan_every: int | None, control_hz: float) -> None:
        self._replan_every = replan_every
        self._pause_ns = 0.0 if replan_every is None else (replan_every - SLACK) * 1e9 / control_hz
        self._last: tuple[int | None, int] | None = None

    def is_due(self, tick: int | None, arrived_ns: int) -> bool:
        if self._replan_every is None or self._last is None:
            return True
        last_tick, last_arrived_ns = self._last
        executed = 0 if tick is None or last_tick is None else tick - last_tick
        return executed >= self._replan_every or arrived_ns - last_arrived_ns >= self._pause_ns

    def begin(self, tick: int | None, arrived_ns: int) -> None:
        """A chunk for this observation is being made."""
        self._last = tick, arrived_ns

    def fail(self) -> None:
        """There is none for it: the next observation is due."""
        self._last = None
