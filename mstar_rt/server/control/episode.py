"""What a session keeps from tick to tick of one episode, and forgets at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mstar_rt.server.control.ensemble import TemporalEnsemble
from mstar_rt.server.control.history import History
from mstar_rt.server.control.replanning import Replanning
from mstar_rt.server.control.ticks import SentChunks

if TYPE_CHECKING:
    from mstar_rt.server.control.settings import ControlSettings


@dataclass(kw_only=True, eq=False)
class Episode:
    """`instruction_index` counts the SetInstruction messages; `ensemble` is None if chunks are not averaged."""

    epoch: int
    seed: int
    instruction: str
    history: History
    replanning: Replanning
    ensemble: TemporalEnsemble | None
    instruction_index: int = 0
    sent: SentChunks = field(default_factory=SentChunks)


def new_episode(settings: ControlSettings, epoch: int, seed: int, instruction: str) -> Episode:
    ensemble = None
    if settings.chunking is not None and settings.chunking.ensemble_decay is not None:
        ensemble = TemporalEnsemble(settings.policy.action_horizon, settings.chunking.ensemble_decay)
    return Episode(
        epoch=epoch,
        seed=seed,
        instruction=instruction,
        history=History(settings.policy.num_observations),
        replanning=Replanning(settings.replan_every, settings.control_hz),
        ensemble=ensemble,
    )
