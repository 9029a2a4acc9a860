"""`InFlight`: observations of which it is not known yet what became of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """An observation: the robot's tick, when it was made, and after how many calls of `act`."""

    tick: int
    made_ns: int
    num_acts: int


class InFlight:
    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __contains__(self, seq: int) -> bool:
        return seq in self._asked

    def sent(self, seq: int, asked: Asked) -> None:
        self._asked[seq] = asked

    def dropped(self, seq: int) -> None:
        self._asked.pop(seq, None)

    def answered(self, seq: int) -> Asked | None:
        """None: nobody waits for that. What was sent before it does not count any more."""
        asked = self._asked.pop(seq, None)
        if asked is not None:
            self._asked = {each: other for each, other in self._asked.items() if each > seq}
        return asked

    @property
    def newest_tick(self) -> int | None:
        """Of the observation that is sent last; None: there is none."""
        return next(reversed(self._asked.values())).tick if self._asked else None

    def has_newer(self, made_ns: int) -> bool:
        """Is there one that was made then or later?"""
        return any(asked.made_ns >= made_ns for asked in self._asked.values())

    def clear(self) -> None:
        self._asked.clear()
