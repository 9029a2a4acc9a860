"""What the outside of a conductor can know of which ranks serve."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_rt.message import Warmed, WarmUp
from mstar_rt.placement import Placement


@dataclass
class WarmBook:
    """`asked` are the warm-ups whose answer counts, by number. `says_serving` is the last word on it."""

    placement: Placement
    ready: set[int] = field(default_factory=set)
    warm: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    asked: dict[int, WarmUp] = field(default_factory=dict)
    last_number: int = 0
    started: bool = False
    says_serving: bool = False

    @property
    def everyone(self) -> set[int]:
        return set(self.placement.ranks_of("m"))

    @property
    def serving(self) -> bool:
        return self.started and self.is_enough(self.warm)

    def is_enough(self, ranks: set[int]) -> bool:
        """Whether every node has one of these."""
        uses = [use for walk in self.placement.walks("m") for use in self.placement.use_ranks("m", walk)]
        return all(ranks & set(use) for use in uses)

    def ranks_of(self, warm_up: WarmUp) -> set[int]:
        """Where its requests may run: what was chosen, and what is no matter of choice."""
        uses = [use for walk in self.placement.walks("m") for use in self.placement.use_ranks("m", walk)]
        return {*warm_up.replicas, *(use[0] for use in uses if len(use) == 1)}

    def come(self, rank: int) -> None:
        self.ready.add(rank)
        self.failed.clear()

    def lose(self, rank: int) -> None:
        for ranks in (self.ready, self.warm, self.failed):
            ranks.discard(rank)
        self.asked = {number: asked for number, asked in self.asked.items() if rank not in self.ranks_of(asked)}

    def ask(self, warm_up: WarmUp) -> None:
        assert warm_up.generation > self.last_number
        self.last_number = warm_up.generation
        groups = self.placement.groups("m")
        assert all(rank in group.ranks for rank, group in zip(warm_up.replicas, groups, strict=True))
        assert self.ranks_of(warm_up) <= self.ready, "it cannot run"
        assert not self.ranks_of(warm_up) <= self.warm, "nothing is new there"
        assert warm_up.at_start == (not self.started)
        assert self.started or self.ready == self.everyone
        self.asked[warm_up.generation] = warm_up

    def answer(self, warmed: Warmed) -> None:
        asked = self.asked.pop(warmed.generation, None)
        if asked is None:
            return
        if warmed.reason:
            self.failed |= self.ranks_of(asked) - self.warm
        else:
            self.warm |= self.ranks_of(asked)
            self.failed -= self.warm
        self.started = self.started or self.warm == self.everyone

    def check(self) -> None:
        """After everything that the conductor had to say."""
        assert self.says_serving == self.serving
        if self.is_enough(self.ready) and (self.started or self.ready == self.everyone):
            cared_for = (
                self.warm | self.failed | {rank for asked in self.asked.values() for rank in self.ranks_of(asked)}
            )
            assert self.ready <= cared_for, "somebody waits for a warm-up that nobody asks for"
