"""Which ranks serve a model: those that are ready and have been warmed up for it since they came."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from mstar_rt.conductor.replicas import replicas_over
from mstar_rt.conductor.workers import Workers
from mstar_rt.message import ServingState, Warmed, WarmUp
from mstar_rt.placement import Placement, Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningWarmUp:
    """It was asked for the sake of `due`, and runs on `ranks`."""

    due: frozenset[int]
    ranks: frozenset[int]


@dataclass(slots=True)
class WarmUpState:
    """One model. `places` are the ranks that each node may run on. A ready rank is in `warm`, in `failed` with the
    reason, due in one of the warm-ups in `running`, or waits for other ranks that its warm-up needs.

    `generation` grows with every warm-up asked for. `started`: all ranks have been warm at once.
    """

    places: tuple[Ranks, ...]
    generation: int = 0
    started: bool = False
    warm: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    running: dict[int, RunningWarmUp] = field(default_factory=dict)

    @property
    def is_serving(self) -> bool:
        return self.started and not self.lacking(self.warm)

    def lacking(self, ranks: AbstractSet[int]) -> list[Ranks]:
        """Places of nodes of which none is among `ranks`."""
        return [place for place in self.places if ranks.isdisjoint(place)]

    def concern(self, ranks: AbstractSet[int]) -> bool:
        """Whether any of these is among what the model does not serve for."""
        return not self.started or any(not ranks.isdisjoint(place) for place in self.lacking(self.warm))


class WarmUps:
    """Says what to tell the server. A model begins to serve when all its ranks are warm; from then on it serves while
    every node can run on some warm rank, and others are warmed up beside that."""

    def __init__(self, placement: Placement, workers: Workers) -> None:
        self._placement = placement
        self._workers = workers
        self._states = {model: WarmUpState(placement.places(model)) for model in placement.models}

    # --- what happens to ranks ---------------------------------------------------------------------------------------

    def rank_ready(self, rank: int) -> list[WarmUp]:
        """The rank is to be warmed up, and so is once more what failed before it came."""
        asked = []
        for model in self._placement.models_on(rank):
            self._states[model].failed.clear()
            asked += self.due(model)
        return asked

    def rank_lost(self, rank: int, reason: str) -> list[ServingState]:
        """Warm-ups that run there are over. What else they were for is `due` again."""
        news = []
        for model in self._placement.models_on(rank):
            state = self._states[model]
            state.warm.discard(rank)
            state.failed.pop(rank, None)
            state.running = {number: each for number, each in state.running.items() if rank not in each.ranks}
            if not state.is_serving and state.concern({rank}):
                news.append(ServingState(model, False, reason))
        return news

    def due(self, model: str) -> list[WarmUp]:
        """The warm-ups to begin now: one for each rank, but one for all that it would be the same for."""
        state, everyone = self._states[model], self._placement.ranks_of(model)
        ready = {rank for rank in everyone if self._workers.is_ready(rank)}
        if state.lacking(ready) or (not state.started and len(ready) < len(everyone)):
            return []
        settled = state.warm.union(state.failed, *(each.due for each in state.running.values()))
        ranks_by_choice: dict[tuple[int, ...], set[int]] = {}
        for rank in sorted(ready - settled):
            replicas = replicas_over(rank, self._placement.groups(model), state.warm, ready)
            ranks_by_choice.setdefault(replicas, set()).add(rank)
        return [self._begin(model, replicas, due) for replicas, due in ranks_by_choice.items()]

    def _begin(self, model: str, replicas: tuple[int, ...], due: set[int]) -> WarmUp:
        state = self._states[model]
        state.generation += 1
        ranks = frozenset([*replicas, *self.fixed_ranks(model)])
        state.running[state.generation] = RunningWarmUp(frozenset(due), ranks)
        return WarmUp(model, state.generation, list(replicas), at_start=not state.started)

    def ended(self, warmed: Warmed) -> list[ServingState]:
        """Answers to questions that are no more are ignored."""
        state = self._states.get(warmed.model)
        ended = None if state is None else state.running.pop(warmed.generation, None)
        if state is None or ended is None:
            return []
        return self._failed(state, ended, warmed) if warmed.reason else self._succeeded(state, ended, warmed.model)

    def _succeeded(self, state: WarmUpState, ended: RunningWarmUp, model: str) -> list[ServingState]:
        """On all ranks that it ran on, whatever another warm-up found there."""
        was_serving = state.is_serving
        state.warm |= ended.ranks
        for rank in ended.ranks:
            state.failed.pop(rank, None)
        state.started = state.started or state.warm.issuperset(self._placement.ranks_of(model))
        logger.info("model %s is warm on %s", model, listed(sorted(state.warm)))
        return [ServingState(model, True)] if state.is_serving and not was_serving else []

    def _failed(self, state: WarmUpState, ended: RunningWarmUp, warmed: Warmed) -> list[ServingState]:
        left_out = ended.due - state.warm
        state.failed |= dict.fromkeys(left_out, warmed.reason)
        if state.started and left_out:  # at the start the deployment ends with the reason
            logger.error("model %s does not use %s: %s", warmed.model, listed(sorted(left_out)), warmed.reason)
        tells = not state.is_serving and state.concern(left_out)
        return [ServingState(warmed.model, False, warmed.reason)] if tells else []

    # --- what is so now ----------------------------------------------------------------------------------------------

    def is_serving(self, model: str) -> bool:
        return self._states[model].is_serving

    def warm_ranks(self, model: str) -> AbstractSet[int]:
        """Those that requests may choose."""
        return self._states[model].warm

    def fixed_ranks(self, model: str) -> list[int]:
        """Those that every request may need, whatever replicas it chooses."""
        return [place[0] for place in self._states[model].places if len(place) == 1]

    def reason(self, model: str) -> str:
        """Why it does not serve."""
        state, everyone = self._states[model], self._placement.ranks_of(model)
        ready = {rank for rank in everyone if self._workers.is_ready(rank)}
        places = state.lacking(ready) if state.started else [(rank,) for rank in everyone if rank not in ready]
        if places:
            return f"no worker is ready on {listed(places[0])}"
        failures = [reason for rank, reason in state.failed.items() if state.concern({rank})]
        return failures[0] if failures else "it is warming up"

    def stats(self) -> dict[str, float]:
        """Gauges by name."""
        values = {f"ranks_serving/{model}": float(len(state.warm)) for model, state in self._states.items()}
        return {**values, "models_serving": float(sum(state.is_serving for state in self._states.values()))}


def listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
