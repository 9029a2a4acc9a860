"""One observation from its arrival on."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.control.episode import Episode
from mstar_rt.server.control.history import Window


@dataclass(kw_only=True, eq=False)
class Arrived:
    """`tick` is None if the observation does not say it. `window` ends with this observation; None: it is not decoded
    yet. The instruction is the one that was in force at arrival. `over_rate`: it came sooner than the robot said.
    """

    message: wire.Observation
    timer: CallTimer
    deadline_ns: int
    episode: Episode
    tick: int | None
    instruction: str
    instruction_index: int
    window: Window | None = None
    over_rate: bool = False

    @property
    def seq(self) -> int:
        return self.message.seq
