"""Control sessions that were admitted, and how much of each rank they take: a pure object, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from mstar_rt.conductor.admission_costs import CostBook, Kind, TaskCosts
from mstar_rt.errors import ResourceExhausted
from mstar_rt.message import OpenSession
from mstar_rt.placement import Placement

ROUNDING = 1e-9


class Use(NamedTuple):
    """What a session runs, which settles what one request of it costs."""

    model: str
    task: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Reservation:
    """`rate_hz` requests per second. `costs` is where what they cost is noted."""

    use: Use
    rate_hz: float
    costs: TaskCosts

    def asks_no_more_than(self, other: Reservation) -> bool:
        return self.use == other.use and self.rate_hz <= other.rate_hz


class Reservations:
    """By session. `warm_ranks` are those that requests of a model may choose now: over these the work is spread.

    A reservation lasts as long as its session, also while a rank is away; what it takes follows what its requests are
    measured to cost.
    """

    def __init__(
        self,
        bound: float | None,
        costs: CostBook,
        placement: Placement,
        warm_ranks: Callable[[str], AbstractSet[int]],
    ) -> None:
        self._bound = bound
        self._costs = costs
        self._placement = placement
        self._warm_ranks = warm_ranks
        self._held: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, session_id: str) -> Reservation | None:
        return self._held.get(session_id)

    def reserve(self, opened: OpenSession) -> None:
        """A robot that has lost its connection gets its place back: the server may not know yet that it has.

        Raises:  ResourceExhausted: with it, some rank would be fuller than the bound.
        """
        costs = self._costs.of(opened.model, opened.task)
        wanted = Reservation(Use(opened.model, opened.task, costs.kind(opened.params)), opened.rate_hz, costs)
        before = self._held.pop(opened.takes_over, None)
        try:
            if self._bound is not None and not (before is not None and wanted.asks_no_more_than(before)):
                self._check(wanted, self._bound)
        except ResourceExhausted:
            if before is not None:
                self._held[opened.takes_over] = before
            raise
        self._held[opened.session_id] = wanted

    def release(self, session_id: str) -> None:
        self._held.pop(session_id, None)

    def utilisation(self) -> dict[int, float]:
        """By rank, of those that sessions use. Most sessions are alike."""
        rates_hz: dict[Use, float] = {}
        for reservation in self._held.values():
            rates_hz[reservation.use] = rates_hz.get(reservation.use, 0.0) + reservation.rate_hz
        used: dict[int, float] = {}
        for use, rate_hz in rates_hz.items():
            for rank, each_s in self._busy_s(use).items():
                used[rank] = used.get(rank, 0.0) + each_s * rate_hz
        return used

    def _busy_s(self, use: Use) -> dict[int, float]:
        """Seconds of each rank that one request takes: of replicas, each does its share of the requests."""
        estimate = self._costs.of(use.model, use.task).estimate(use.kind)
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

    def _check(self, wanted: Reservation, bound: float) -> None:
        used = self.utilisation()
        fits = [
            ((bound - used.get(rank, 0.0)) / each_s, rank, each_s)
            for rank, each_s in self._busy_s(wanted.use).items()
            if each_s > 0
        ]
        fitting_hz, rank, each_s = min(fits, default=(math.inf, 0, 0.0))
        if wanted.rate_hz <= fitting_hz * (1 + ROUNDING):
            return
        raise ResourceExhausted(
            f"model {wanted.use.model!r} cannot serve a control session at {wanted.rate_hz:.4g} Hz on time: control "
            f"sessions use {used.get(rank, 0.0):.1%} of rank {rank}, this one would add {each_s * wanted.rate_hz:.1%} "
            f"({1e3 * each_s:.3g} ms x {wanted.rate_hz:.4g} Hz), at most {bound:.1%} may be used; {_advice(fitting_hz)}"
        )


def _advice(fitting_hz: float) -> str:
    if fitting_hz < 0.01:
        return "no rate would fit now, try again when a session has ended"
    digits = 10.0 ** (2 - math.floor(math.log10(fitting_hz)))
    rate = math.floor(fitting_hz * digits) / digits
    return f"{rate:g} Hz would fit: replan less often, or try again when a session has ended"
