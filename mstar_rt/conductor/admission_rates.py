"""Control sessions that were admitted, and how much of each rank they take: a pure object, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from mstar_rt.conductor.admission_costs import CostBook, Kind, TaskCosts
from mstar_rt.conductor.admission_sharing import WAITED_PART, Crowd, Sharing
from mstar_rt.errors import ResourceExhausted
from mstar_rt.message import OpenSession
from mstar_rt.placement import Placement

ROUNDING = 1e-9
KEPT_NS = 60_000_000_000
"""For how long the place of a session that has ended is there for one that asks for no more, if nobody else came."""


class Use(NamedTuple):
    """What a session runs, which settles what one request of it costs."""

    model: str
    task: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Reservation:
    """`rate_hz` requests per second, each of which has its answer within `deadline_s`; None: within the period. `costs`
    is where what they cost is noted."""

    use: Use
    rate_hz: float
    deadline_s: float | None
    costs: TaskCosts

    @property
    def due_s(self) -> float:
        """Until when a request is to be answered: before the next one, in any case."""
        return 1.0 / self.rate_hz if self.deadline_s is None else min(1.0 / self.rate_hz, self.deadline_s)

    def asks_no_more_than(self, other: Reservation) -> bool:
        return self.use == other.use and self.rate_hz <= other.rate_hz and self.due_s >= other.due_s


class Reservations:
    """By session. `warm_ranks` are those that requests of a model may choose now: over these the work is spread.

    A reservation lasts as long as its session, also while a rank is away; what it takes follows what its requests are
    measured to cost. That may have risen since somebody was let in: whoever leaves and comes back soon finds the place
    that there was, so that costs are looked at again when somebody new comes, and not for who has been there.
    """

    def __init__(
        self,
        bound: float | None,
        costs: CostBook,
        sharing: Sharing,
        placement: Placement,
        warm_ranks: Callable[[str], AbstractSet[int]],
    ) -> None:
        self._bound = bound
        self._costs = costs
        self._sharing = sharing
        self._placement = placement
        self._warm_ranks = warm_ranks
        self._held: dict[str, Reservation] = {}
        self._left: list[tuple[int, Reservation]] = []

    def __len__(self) -> int:
        return len(self._held)

    def get(self, session_id: str) -> Reservation | None:
        return self._held.get(session_id)

    def reserve(self, opened: OpenSession, now_ns: int) -> None:
        """A robot that has lost its connection gets its place back: the server may not know yet that it has.

        Raises:  ResourceExhausted: with it, there would be too little time on some rank.
        """
        costs = self._costs.of(opened.model, opened.task)
        use = Use(opened.model, opened.task, costs.kind(opened.params))
        wanted = Reservation(use, opened.rate_hz, opened.deadline_s, costs)
        before = self._held.pop(opened.takes_over, None)
        if self._bound is not None and not (before is not None and wanted.asks_no_more_than(before)):
            has_place = self._takes_left_place(wanted, now_ns)
            try:
                self._check(wanted, self._bound)
            except ResourceExhausted:
                if not has_place:
                    if before is not None:
                        self._held[opened.takes_over] = before
                    raise
            if not has_place:
                self._left.clear()
        self._held[opened.session_id] = wanted

    def release(self, session_id: str, now_ns: int) -> None:
        reservation = self._held.pop(session_id, None)
        if reservation is not None:
            self._left.append((now_ns + KEPT_NS, reservation))

    def utilisation(self) -> dict[int, float]:
        """By rank, of those that sessions use: what they need of it, sharing steps where they can."""
        used: dict[int, float] = {}
        for use, rate_hz in self._rates_hz().items():
            crowd = self._crowd(use, None)
            if crowd is not None and crowd.num:
                used[crowd.rank] = crowd.cost_s(crowd.num) / crowd.num * rate_hz
                continue
            for rank, each_s in self._busy_s(use).items():
                used[rank] = used.get(rank, 0.0) + each_s * rate_hz
        return used

    def utilisation_apart(self) -> dict[int, float]:
        """What they take, by rank, while there is time for one after another."""
        used: dict[int, float] = {}
        for use, rate_hz in self._rates_hz().items():
            for rank, each_s in self._busy_s(use).items():
                used[rank] = used.get(rank, 0.0) + each_s * rate_hz
        return used

    def _rates_hz(self) -> dict[Use, float]:
        """Most sessions are alike."""
        rates_hz: dict[Use, float] = {}
        for reservation in self._held.values():
            rates_hz[reservation.use] = rates_hz.get(reservation.use, 0.0) + reservation.rate_hz
        return rates_hz

    def _takes_left_place(self, wanted: Reservation, now_ns: int) -> bool:
        """Whether there was one that asked for as much and has left; nobody else finds it any more."""
        self._left = [(until_ns, left) for until_ns, left in self._left if until_ns > now_ns]
        for entry in self._left:
            if wanted.asks_no_more_than(entry[1]):
                self._left.remove(entry)
                return True
        return False

    def _busy_s(self, use: Use, num_together: int = 1) -> dict[int, float]:
        """Seconds of each rank that one request takes: of replicas, each does its share of the requests."""
        estimate = self._costs.of(use.model, use.task).estimate(use.kind, num_together)
        warm = self._warm_ranks(use.model)
        total_s: dict[int, float] = {}
        for walk in {walk for walk, _ in estimate}:
            program = self._placement.program(use.model, walk)
            for node, ranks in zip(program.nodes, self._placement.use_ranks(use.model, walk), strict=True):
                by_rank = estimate.get((walk, node.name))
                if by_rank is None:
                    continue
                on = [rank for rank in ranks if rank in warm] or ranks
                for rank in on:
                    cost_us = by_rank.get(rank, max(by_rank.values()))
                    total_s[rank] = total_s.get(rank, 0.0) + cost_us / 1e6 / len(on)
        return total_s

    def _crowd(self, use: Use, wanted: Reservation | None) -> Crowd | None:
        """Those of that use that are there, and the one that wants to come; None where it is not known that they are in
        time together: they use more than one rank, or others use theirs."""
        ranks = set(self._busy_s(use))
        if len(ranks) != 1 or not self._sharing.is_known_on(rank := ranks.pop()):
            return None
        if any(rank in self._busy_s(other) for other in self._rates_hz() if other != use):
            return None
        there = [reservation for reservation in self._held.values() if reservation.use == use]
        return Crowd(
            rank,
            len(there) + (wanted is not None),
            lambda num: num * self._busy_s(use, num)[rank],
            sum(each.rate_hz for each in there),
            min((each.due_s for each in there), default=math.inf),
            self._sharing.other_step_s(rank),
            self._sharing.lower_share(rank),
        )

    def _check_hope(self, wanted: Reservation) -> None:
        """Whoever gives less than half of what a chunk takes would get none, ever. Half: the machine may have been busy
        when it was measured."""
        takes_s = sum(self._busy_s(wanted.use).values())
        if wanted.deadline_s is None or wanted.costs.may_do_less or wanted.deadline_s >= takes_s / 2:
            return
        raise ResourceExhausted(
            f"model {wanted.use.model!r} takes {1e3 * takes_s:.3g} ms for a chunk where nothing else runs, so none "
            f"would come within budget_ms {1e3 * wanted.deadline_s:.3g}: give it more time, or options that cost less"
        )

    def _check(self, wanted: Reservation, bound: float) -> None:
        self._check_hope(wanted)
        used = self.utilisation_apart()
        fits = [
            ((bound - used.get(rank, 0.0)) / each_s, rank, each_s)
            for rank, each_s in self._busy_s(wanted.use).items()
            if each_s > 0
        ]
        fitting_hz, rank, each_s = min(fits, default=(math.inf, 0, 0.0))
        if wanted.rate_hz <= fitting_hz * (1 + ROUNDING):
            return
        crowd, together = self._crowd(wanted.use, wanted), ""
        if crowd is not None:
            fitting_hz = max(fitting_hz, crowd.fitting_hz(bound, wanted.deadline_s))
            if wanted.rate_hz <= fitting_hz * (1 + ROUNDING):
                return
            together = _together(crowd, wanted) if crowd.num > 1 else ""
        raise ResourceExhausted(
            f"model {wanted.use.model!r} cannot serve a robot {wanted.rate_hz:.4g} chunks per second (control_hz / "
            f"replan_every) on time: control sessions use {used.get(rank, 0.0):.1%} of rank {rank}, this one would add "
            f"{each_s * wanted.rate_hz:.1%} ({1e3 * each_s:.3g} ms x {wanted.rate_hz:.4g} per second), at most "
            f"{bound:.1%} may be used{together}; {_advice(fitting_hz)}"
        )


def _together(crowd: Crowd, wanted: Reservation) -> str:
    needed = crowd.cost_s(crowd.num) / crowd.num * (crowd.rate_hz + wanted.rate_hz)
    due_s = min(crowd.deadline_s, wanted.due_s)
    return (
        f", unless they share steps: then {crowd.num} robots need {needed:.1%}, and wait up to "
        f"{1e3 * crowd.wait_s:.3g} ms, at most {WAITED_PART:.0%} of the {1e3 * due_s:.3g} ms in which chunks are due"
    )


def _advice(fitting_hz: float) -> str:
    if fitting_hz < 0.01:
        return "no rate would fit now, try again when a session has ended"
    digits = 10.0 ** (2 - math.floor(math.log10(fitting_hz)))
    rate = math.floor(fitting_hz * digits) / digits
    return f"{rate:g} chunks per second would fit: replan less often, or try again when a session has ended"
