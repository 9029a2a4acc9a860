"""Which workers live: who is ready, and from whom nothing is heard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mstar_rt.config import WorkerConfig
from mstar_rt.message import Heartbeat, WorkerReady

LOOK_EVERY_NS = 2_000_000_000
"""What a time between two looks has over this is not counted as silence: it was we who did not listen."""


@dataclass(slots=True)
class Heard:
    """The last word of a worker, when it came, and how much of the time since then we did not listen."""

    at_ns: int
    deaf_ns: int
    step_ns: int
    node: str


class Workers:
    """One life of a rank goes from WorkerReady to `lost`; what an earlier life said last is ignored."""

    def __init__(self, configs: Sequence[WorkerConfig]) -> None:
        self._configs = {config.rank: config for config in configs}
        self._ready: dict[int, int] = {}
        self._dead_pids: dict[int, int] = {}
        self._heard: dict[int, Heard] = {}
        self._looked_ns: int | None = None

    @property
    def ready_ranks(self) -> tuple[int, ...]:
        return tuple(self._ready)

    def is_ready(self, rank: int) -> bool:
        return rank in self._ready

    def missing(self, ranks: Iterable[int]) -> list[int]:
        """Those that are not ready."""
        return [rank for rank in ranks if rank not in self._ready]

    def say_ready(self, ready: WorkerReady, now_ns: int) -> bool:
        """False if this is old news. It counts as heard from: it may hang before its first heartbeat."""
        if ready.pid in (self._dead_pids.get(ready.rank), self._ready.get(ready.rank)):
            return False
        self._dead_pids.pop(ready.rank, None)  # the kernel may give the number to a later worker
        self._ready[ready.rank] = ready.pid
        self._heard[ready.rank] = Heard(now_ns, 0, 0, "")
        return True

    def lost(self, rank: int, pid: int | None) -> None:
        self._ready.pop(rank, None)
        self._heard.pop(rank, None)
        if pid is not None:
            self._dead_pids[rank] = pid

    def hear(self, heartbeat: Heartbeat, now_ns: int) -> None:
        if heartbeat.pid != self._dead_pids.get(heartbeat.rank):
            self._heard[heartbeat.rank] = Heard(now_ns, 0, heartbeat.step_ns, heartbeat.node)

    def overdue(self, now_ns: int) -> list[tuple[int, str]]:
        """(rank, why) of the workers that hang. A worker counts from the moment at which it is ready."""
        self._note_absence(now_ns)
        found = []
        for rank, heard in self._heard.items():
            config = self._configs.get(rank)
            if config is None:
                continue
            silent_s = (now_ns - heard.at_ns - heard.deaf_ns) / 1e9
            step_s = (heard.at_ns - heard.step_ns) / 1e9 if heard.step_ns else 0.0
            if silent_s > config.silence_timeout_s:
                found.append((rank, f"it was silent for {silent_s:.1f} s, over {config.silence_timeout_s:g} s"))
            elif step_s > config.max_step_s:
                found.append((rank, f"a step of node {heard.node!r} took over {config.max_step_s:g} s"))
        return found

    def _note_absence(self, now_ns: int) -> None:
        if self._looked_ns is not None:
            for heard in self._heard.values():
                heard.deaf_ns += max(0, now_ns - max(self._looked_ns, heard.at_ns) - LOOK_EVERY_NS)
        self._looked_ns = now_ns
