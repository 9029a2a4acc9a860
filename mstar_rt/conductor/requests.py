"""What the conductor remembers of a request: plain records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mstar_rt.conductor.itinerary import Itinerary, Stage
from mstar_rt.conductor.scopes import ScopeRecord, fetches_for
from mstar_rt.conductor.sessions import Session
from mstar_rt.message import NodeTime, StartWalk, Submit, WalkDone


@dataclass(slots=True)
class Tally:
    """What a request has cost and brought, over its walks and their ranks."""

    num_emitted: int = 0
    node_times: dict[str, NodeTime] = field(default_factory=dict)
    loop_us: dict[str, float] = field(default_factory=dict)
    num_iterations: dict[str, int] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    wait_us: float = 0.0
    run_us: float = 0.0

    def add_walk(self, parts: Iterable[WalkDone]) -> None:
        """One finished walk, told of by each of its ranks. They turn the same loops, so that iterations count once."""
        num_iterations: dict[str, int] = {}
        for part in parts:
            self._add_part(part)
            for loop, count in part.num_iterations.items():
                num_iterations[loop] = max(count, num_iterations.get(loop, 0))
        for loop, count in num_iterations.items():
            self.num_iterations[loop] = self.num_iterations.get(loop, 0) + count

    def _add_part(self, part: WalkDone) -> None:
        self.num_emitted += part.num_emitted
        self.wait_us += part.wait_us
        self.run_us += part.run_us
        self.flags += [flag for flag in part.flags if flag not in self.flags]
        for name, time in part.node_times.items():
            total = self.node_times.setdefault(name, NodeTime())
            total.num_steps += time.num_steps
            total.queue_us += time.queue_us
            total.run_us += time.run_us
            total.batched_with += time.batched_with
            total.batched_own += time.batched_own
        for loop, loop_us in part.loop_us.items():
            self.loop_us[loop] = self.loop_us.get(loop, 0.0) + loop_us


@dataclass(slots=True)
class CurrentWalk:
    """The walk that a request is in. `done` are the ranks whose part is complete; `yielded_on` is the rank whose pages
    it waits for while it is suspended."""

    stage: Stage
    walk_id: int
    done: dict[int, WalkDone] = field(default_factory=dict)
    yielded_on: int | None = None

    @property
    def running_ranks(self) -> list[int]:
        """Where a part of it runs now."""
        return [] if self.yielded_on is not None else [rank for rank in self.stage.plan.ranks if rank not in self.done]


@dataclass(slots=True)
class RequestState:
    """A request on its way along its itinerary.

    `age` is its first walk's number. `unread` are the ranks that have yet to be given each input that lies in shared
    memory, `started` those that were sent a walk. `left` is what its walks left, which is the session's once it has
    finished. `parts` are what its ranks told of its finished walks. `walk` is None until its turn in the session
    comes.
    """

    submit: Submit
    itinerary: Itinerary
    session: Session | None
    start_ns: int
    unread: dict[str, set[int]] = field(default_factory=dict)
    num_started: int = 0
    age: int = 0
    walk: CurrentWalk | None = None
    started: set[int] = field(default_factory=set)
    left: ScopeRecord = field(default_factory=ScopeRecord)
    parts: list[tuple[str, WalkDone]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def scope(self) -> str:
        """Where walks persist: the session, or the request itself when it has none."""
        return self.submit.session_id or self.submit.request_id

    @property
    def records(self) -> list[ScopeRecord]:
        """Where it finds what earlier walks left, the newer one last."""
        return [self.left] if self.session is None else [self.session.left, self.left]

    def next_stage(self) -> Stage | None:
        """The walk to start, or None after the last one."""
        if self.num_started == len(self.itinerary.stages):
            return None
        self.num_started += 1
        return self.itinerary.stages[self.num_started - 1]

    def start_part(self, stage: Stage, rank: int, walk_id: int) -> StartWalk:
        """What `rank` needs to know to run its part."""
        given = [name for name in stage.gives[rank] if name in self.submit.inputs]
        absent = [name for name in stage.plan.inputs[rank] if name not in self.submit.inputs]
        caches = [cache for cache, ranks in stage.plan.caches.items() if rank in ranks]
        submit = self.submit
        return StartWalk(
            request_id=submit.request_id,
            model=submit.model,
            walk=stage.walk,
            walk_id=walk_id,
            age=self.age,
            node_ranks=list(stage.plan.node_ranks),
            scope=self.scope,
            inputs={name: submit.inputs[name] for name in given},
            params=submit.params,
            deadline_ns=submit.deadline_ns,
            criticality=submit.criticality,
            reply_to=submit.reply_to,
            anytime=self.itinerary.anytime,
            keep=[name for name in given if name in stage.keeps[rank]],
            fetches=fetches_for(rank, absent, caches, self.records),
            client=submit.client,
            is_warm_up=submit.warmup_on is not None,
            playback=submit.playback,
        )

    def note_started(self, start: StartWalk, rank: int) -> None:
        """The rank has been sent that part, and with it the inputs, which it lets go itself."""
        self.started.add(rank)
        if self.session is not None:
            self.session.ranks.add(rank)
        for name in start.inputs:
            if name in self.unread:
                self.unread[name].discard(rank)
