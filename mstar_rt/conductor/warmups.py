"""Which models serve: all their ranks live, and every task has run once since the last of them came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class WarmUpState:
    """`generation` grows with every warm-up asked for; `serving` only after that one was answered well."""

    generation: int = 0
    warming: bool = False
    serving: bool = False
    reason: str = "it is starting"


class WarmUps:
    """By model. The ranks themselves are the business of `Workers`."""

    def __init__(self, models: Iterable[str]) -> None:
        self._states = {model: WarmUpState() for model in models}

    def begin(self, model: str) -> int:
        """All ranks are ready: the generation to warm up."""
        state = self._states[model]
        state.generation += 1
        state.warming, state.serving, state.reason = True, False, "it is warming up"
        return state.generation

    def end(self, model: str, generation: int, reason: str) -> bool:
        """False if the answer is to an earlier question."""
        state = self._states.get(model)
        if state is None or not state.warming or generation != state.generation:
            return False
        state.warming, state.serving, state.reason = False, not reason, reason
        return True

    def interrupt(self, model: str, reason: str) -> None:
        """A rank is gone."""
        state = self._states[model]
        state.warming, state.serving, state.reason = False, False, reason

    def is_serving(self, model: str) -> bool:
        return self._states[model].serving

    def is_warming(self, model: str) -> bool:
        return self._states[model].warming

    def reason(self, model: str) -> str:
        return self._states[model].reason

    @property
    def num_serving(self) -> int:
        return sum(state.serving for state in self._states.values())
