"""A task on a route: its walks in order, and which rank is given which input when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstar_rt.model import ServedModel, TaskSpec
from mstar_rt.placement import Placement, WalkPlan


@dataclass(frozen=True)
class Stage:
    """One walk of an itinerary. `gives` are the inputs that a rank reads here for the first time, `keeps` those of them
    that it reads again in a later walk."""

    walk: str
    plan: WalkPlan
    gives: Mapping[int, tuple[str, ...]]
    keeps: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class Itinerary:
    """Everything about a request that its model, task and choice of replicas settle; shared by all such requests.

    `ranks` take part in some walk. `readers` are the ranks in whose name the server holds each input, `receivers` those
    that are given it. `session_caches` are those whose sequences go on from one request of a session to the next.
    """

    stages: tuple[Stage, ...]
    ranks: tuple[int, ...]
    readers: Mapping[str, tuple[int, ...]]
    receivers: Mapping[str, frozenset[int]]
    session_caches: frozenset[str]
    anytime: bool

    @property
    def in_turn(self) -> bool:
        """Whether it must not overlap with another request of its session: both would go on from the same sequences."""
        return bool(self.session_caches)


class Itineraries:
    """Makes each itinerary once."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._known: dict[tuple[str, str, tuple[int, ...]], Itinerary] = {}

    def get(self, model: ServedModel, task: TaskSpec, choices: tuple[int, ...]) -> Itinerary:
        key = (model.name, task.name, choices)
        itinerary = self._known.get(key)
        if itinerary is None:
            itinerary = self._known[key] = make_itinerary(self._placement, model, task, choices)
        return itinerary


def make_itinerary(placement: Placement, model: ServedModel, task: TaskSpec, choices: tuple[int, ...]) -> Itinerary:
    route = placement.route(model.name, choices)
    plans = [route.walk(name) for name in task.walks]
    stages = tuple(_stage(name, plans, index) for index, name in enumerate(task.walks))
    receivers: dict[str, set[int]] = {}
    for plan in plans:
        for rank, names in plan.inputs.items():
            for name in names:
                receivers.setdefault(name, set()).add(rank)
    return Itinerary(
        stages=stages,
        ranks=tuple(sorted({rank for plan in plans for rank in plan.ranks})),
        readers=placement.readers(model.name, task.walks),
        receivers={name: frozenset(ranks) for name, ranks in receivers.items()},
        session_caches=frozenset(
            cache for plan in plans for cache in plan.caches if model.caches[cache].lifetime == "session"
        ),
        anytime=task.anytime,
    )


def _stage(name: str, plans: list[WalkPlan], index: int) -> Stage:
    plan = plans[index]
    gives = {
        rank: tuple(name for name in names if not _reads(plans[:index], rank, name))
        for rank, names in plan.inputs.items()
    }
    keeps = {
        rank: tuple(name for name in names if _reads(plans[index + 1 :], rank, name)) for rank, names in gives.items()
    }
    return Stage(name, plan, gives, keeps)


def _reads(plans: list[WalkPlan], rank: int, name: str) -> bool:
    return any(name in plan.inputs.get(rank, ()) for plan in plans)
