"""What the outside of a conductor can know of requests and of what they leave."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.message import WalkDone

Fact = tuple[int, int]
"""(walk, rank): that rank's part of that walk has gone on with the sequences of a cache."""


@dataclass
class Level:
    """What a rank keeps for a request or a session: who persisted each value in which walk, what its caches know."""

    values: dict[str, Fact] = field(default_factory=dict)
    caches: dict[str, set[Fact]] = field(default_factory=lambda: defaultdict(set))

    def lies_on(self, rank: int) -> bool:
        """Whether the newest of a value, or anything in a cache, is that rank's."""
        facts = {*self.values.values(), *(fact for facts in self.caches.values() for fact in facts)}
        return any(owner == rank for _, owner in facts)

    def take_over(self, other: Level, caches: tuple[str, ...]) -> None:
        self.values |= other.values
        for cache in caches:
            if other.caches[cache]:
                self.caches[cache] |= other.caches[cache]


@dataclass
class RequestBook:
    """One submitted request as the outside knows it; it may run on ranks that were warm when it came."""

    task: str
    session: str | None
    inputs: set[str]
    may_use: set[int]
    started: set[int] = field(default_factory=set)
    given: set[tuple[int, str]] = field(default_factory=set)
    cancelled_on: set[int] = field(default_factory=set)
    released_on: set[int] = field(default_factory=set)
    answers: list[Any] = field(default_factory=list)
    walk_id: int = 0
    suspended_id: int = 0
    plan: Any = None
    done: dict[int, WalkDone] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    level: dict[int, Level] = field(default_factory=lambda: defaultdict(Level))
    values: dict[str, Fact] = field(default_factory=dict)
    facts: dict[str, set[Fact]] = field(default_factory=lambda: defaultdict(set))
