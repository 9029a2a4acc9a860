"""How episodes in a Gymnasium environment ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mstar_rt.client import ControlStats


@dataclass
class GymEpisode:
    """`total_reward` is its return, undiscounted. `success` None: the environment does not say. `num_held`: ticks
    without an action of a chunk. `num_outside`: actions beyond the bounds of the action space."""

    robot: int
    number: int
    num_steps: int = 0
    total_reward: float = 0.0
    success: bool | None = None
    truncated: bool = False
    num_held: int = 0
    num_outside: int = 0


@dataclass
class GymReport:
    """`episodes` in the order in which they ended; `stats` are those of each robot's session. `num_late_ticks`, in real
    time: those that began more than a control period late."""

    episodes: list[GymEpisode] = field(default_factory=list)
    stats: list[ControlStats] = field(default_factory=list)
    num_late_ticks: int = 0

    @property
    def success_rate(self) -> float | None:
        """Of the episodes that say whether they were one; None: none does."""
        known = [episode.success for episode in self.episodes if episode.success is not None]
        return sum(known) / len(known) if known else None

    @property
    def mean_return(self) -> float:
        return float(np.mean([episode.total_reward for episode in self.episodes])) if self.episodes else float("nan")

    def __str__(self) -> str:
        rate = self.success_rate
        steps = sum(episode.num_steps for episode in self.episodes)
        lines = [
            f"{_counted(len(self.episodes), 'episode')}, {_counted(steps, 'step')}: "
            f"success {'not said' if rate is None else f'{rate:.2f}'}, mean return {self.mean_return:.3f}"
        ]
        if latencies := _joined(self.stats, "chunk_latencies_s"):
            p50, p99 = 1e3 * np.percentile(latencies, (50, 99))
            lines.append(f"{_counted(len(latencies), 'chunk')} in {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
        for name, what in (("num_held", "ticks without an action"), ("num_outside", "actions beyond the action space")):
            if count := sum(getattr(episode, name) for episode in self.episodes):
                lines.append(f"{count} {what}")
        if self.num_late_ticks:
            lines.append(f"{self.num_late_ticks} ticks began more than a control period late")
        return "\n".join(lines)


def success_of(info: dict[str, Any]) -> bool | None:
    """As environments say it: `is_success` or `success`."""
    for name in ("is_success", "success"):
        if name in info:
            return bool(info[name])
    return None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _joined(stats: Sequence[ControlStats], name: str) -> list[float]:
    return [value for each in stats for value in getattr(each, name).tolist()]
