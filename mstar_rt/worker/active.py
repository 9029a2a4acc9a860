"""One walk of one request while it is on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.message import NodeTime, StartWalk
from mstar_rt.program import Firing, Progress, WalkRun


@dataclass(slots=True, eq=False)
class ActiveWalk:
    """Progress, memory and times of one walk. `sequences` are the page tables by cache name.

    `inputs` and `times` are what the walk started from, to start it again after it gave its pages back; `emitted` are
    the (name, iteration) that the client has, which are not sent twice. `arrival` grows with every walk of the worker.
    """

    start: StartWalk
    inputs: Mapping[str, Any]
    times: Mapping[str, int]
    run: WalkRun
    sequences: Mapping[str, SequenceStore]
    arrival: int
    emitted: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    node_times: dict[str, NodeTime] = field(default_factory=dict)
    loop_us: dict[str, float] = field(default_factory=dict)
    num_iterations: dict[str, int] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.start.request_id

    def add_step(self, firing: Firing, queue_us: float, run_us: float, batch_size: int, loops: tuple[str, ...]) -> None:
        """Account one step that this request took part in. `loops` enclose the node, outermost first."""
        time = self.node_times.setdefault(firing.name, NodeTime())
        time.num_steps += 1
        time.queue_us += queue_us
        time.run_us += run_us
        time.batched_with += batch_size - 1
        for loop in loops:
            self.loop_us[loop] = self.loop_us.get(loop, 0.0) + run_us

    def note_flags(self, flags: tuple[str, ...]) -> None:
        self.flags.extend(flag for flag in flags if flag not in self.flags)

    def start_again(self) -> Progress:
        """From the beginning."""
        self.run = WalkRun(self.run.program, self.times)
        return Progress(self.run.start(self.inputs))

    def release(self) -> None:
        """Give back every page and drop every token."""
        self.run.abandon()
        for store in self.sequences.values():
            store.release_all()


@dataclass(slots=True)
class Scopes:
    """What walks persisted, by scope: a session, or a request that belongs to none."""

    _values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def get(self, scope: str) -> Mapping[str, Any]:
        return self._values.get(scope, {})

    def persist(self, scope: str, values: Mapping[str, Any]) -> None:
        if values:
            self._values.setdefault(scope, {}).update(values)

    def release(self, scope: str) -> None:
        self._values.pop(scope, None)

    def __len__(self) -> int:
        return len(self._values)
