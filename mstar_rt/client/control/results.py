"""What a control session tells about itself: plain values and numpy arrays, no protobuf."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mstar_rt.client.control.action_queue import Merged, RobotAction
from mstar_rt.client.control.shared_path import SharedPath
from mstar_rt.client.results import Timing

MAX_RECORDED = 10_000
ORDINARY_FLAGS = ("fewer_steps",)
"""What an anytime session asked for, in any tick that needs it: `ControlStats.denoise_steps` counts it."""


@dataclass(frozen=True)
class ControlEvent:
    """Something that is not a chunk. `seq`: the observation concerned, if any; `detail`: the error as text, if it is
    one.

    From the server: "dropped_stale", "dropped_late", "late", "dropped_epoch", "recovering", "failed", "reset_done",
    "not_due", "unknown".
    From this side: "overwritten" (not sent, a newer observation was there), "refused" (a chunk that is no good),
    "connection_lost", "connected", "flagged" (a chunk has other odd flags than the one before).
    """

    kind: str
    seq: int | None
    epoch: int
    detail: str = ""
    replaced_by: int | None = None


@dataclass(frozen=True)
class ActionChunk:
    """actions [n, A] float32, row 0 for the tick of observation `seq`. `latency_s` is from the observation to the
    chunk's arrival, `num_consumed` the actions that the robot consumed in between, `delay_assumed` what was reckoned
    with.
    """

    seq: int
    epoch: int
    actions: np.ndarray
    delay_assumed: int
    num_consumed: int
    num_denoise_steps: int
    latency_s: float
    instruction: str | None
    timing: Timing
    request_id: str
    flags: tuple[str, ...]

    @property
    def odd_flags(self) -> tuple[str, ...]:
        """Those that do not say what the session asked for."""
        return tuple(flag for flag in self.flags if flag not in ORDINARY_FLAGS)

    @property
    def network_us(self) -> float:
        """What of its latency was neither the server's nor the policy's: the network, and what the robot's own computer
        did with the observation and the chunk."""
        return self.timing.network_us(self.latency_s)


@dataclass(frozen=True)
class ControlStats:
    """Counts since the session was opened, and the newest MAX_RECORDED of what has a distribution.

    `starvation_ticks`: calls of `act` that had nothing to execute after the first action; `waiting_ticks`: before it;
    `stop_ticks`: with nothing new enough. `num_outrun`: chunks during which more actions were consumed than they were
    made for (`ActionChunk.num_consumed` > `delay_assumed`), which leaves a seam. `num_shared`: observations whose raw
    images went through shared memory; `shared_memory`: the present connection has that; `shared_memory_refused`: why
    not, though it was wanted. `chunks` counts what became of chunks ("used", "older", "epoch", "past"), `events` events
    by kind, `denoise_steps` chunks by how many flow or diffusion steps made them (policies without: 0). `seam_jumps`
    and `steps` are max |difference| over the dimensions of an action: between the old chunk and the new one for the
    same tick, and between actions executed one after the other.
    """

    num_ticks: int
    num_actions: int
    starvation_ticks: int
    waiting_ticks: int
    stop_ticks: int
    num_observations: int
    num_connections: int
    num_outrun: int
    num_shared: int
    shared_memory: bool
    shared_memory_refused: str
    chunks: Mapping[str, int]
    events: Mapping[str, int]
    denoise_steps: Mapping[int, int]
    seam_jumps: np.ndarray
    steps: np.ndarray
    action_ages_s: np.ndarray
    chunk_latencies_s: np.ndarray
    delays: np.ndarray


class Recorder:
    """Collects what `ControlStats` shows."""

    def __init__(self, shared: SharedPath) -> None:
        self._shared = shared
        self.ticks: Counter[str] = Counter()
        self.chunks: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.denoise_steps: Counter[int] = Counter()
        self.num_observations = 0
        self.num_connections = 0
        self.num_outrun = 0
        self.num_shared = 0
        self.starvation_ticks = 0
        self.waiting_ticks = 0
        self.seam_jumps: deque[float] = deque(maxlen=MAX_RECORDED)
        self.steps: deque[float] = deque(maxlen=MAX_RECORDED)
        self.action_ages_s: deque[float] = deque(maxlen=MAX_RECORDED)
        self.chunk_latencies_s: deque[float] = deque(maxlen=MAX_RECORDED)
        self.delays: deque[float] = deque(maxlen=MAX_RECORDED)

    def tick(self, action: RobotAction, before: np.ndarray | None, started: bool) -> None:
        """`before` is the last action that was executed; `started`: there has been one to execute."""
        self.ticks[action.kind] += 1
        if action.kind == "chunk":
            assert action.action is not None
            assert action.age_s is not None
            self.action_ages_s.append(action.age_s)
            if before is not None:
                self.steps.append(float(np.max(np.abs(action.action - before))))
        elif action.kind == "hold":
            self.starvation_ticks += started
            self.waiting_ticks += not started

    def chunk(self, merged: Merged, num_consumed: int, latency_s: float, num_denoise_steps: int) -> None:
        self.chunks[merged.outcome] += 1
        self.denoise_steps[num_denoise_steps] += 1
        self.delays.append(num_consumed)
        self.chunk_latencies_s.append(latency_s)
        if merged.seam_jump is not None:
            self.seam_jumps.append(merged.seam_jump)

    def snapshot(self) -> ControlStats:
        return ControlStats(
            num_ticks=self.ticks.total(),
            num_actions=self.ticks["chunk"],
            starvation_ticks=self.starvation_ticks,
            waiting_ticks=self.waiting_ticks,
            stop_ticks=self.ticks["stop"],
            num_observations=self.num_observations,
            num_connections=self.num_connections,
            num_outrun=self.num_outrun,
            num_shared=self.num_shared,
            shared_memory=self._shared.in_use,
            shared_memory_refused=self._shared.refused,
            chunks=dict(self.chunks),
            events=dict(self.events),
            denoise_steps=dict(self.denoise_steps),
            seam_jumps=_array(self.seam_jumps),
            steps=_array(self.steps),
            action_ages_s=_array(self.action_ages_s),
            chunk_latencies_s=_array(self.chunk_latencies_s),
            delays=_array(self.delays),
        )


def _array(values: Iterable[float]) -> np.ndarray:
    return np.array(list(values), np.float64)
