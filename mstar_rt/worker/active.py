"""One rank's part of one walk of one request while it is on a worker."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_rt.cache.moving import Delta
from mstar_rt.engine import Engine
from mstar_rt.message import NodeTime, StartWalk
from mstar_rt.model import NodeCall
from mstar_rt.program import Emission, Firing, Send, WalkRun
from mstar_rt.worker.loaded import LoadedModel, Part
from mstar_rt.worker.mail import Piece
from mstar_rt.worker.memory import WalkMemory
from mstar_rt.worker.playback import Player
from mstar_rt.worker.remaining_time import MAX_MARKS, Mark, Pace
from mstar_rt.worker.unit import Unit


class Stage(enum.Enum):
    """WAITING for what other ranks keep, or for pages to hold it; RUNNING; SUSPENDED, to begin again from its inputs;
    DONE here, while other ranks may still run theirs; ENDED."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    SUSPENDED = enum.auto()
    DONE = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True, eq=False)
class Work:
    """What a unit runs: one firing of one walk."""

    walk: ActiveWalk
    firing: Firing
    call: NodeCall
    engine: Engine


@dataclass(slots=True, eq=False)
class ActiveWalk:
    """Progress, memory and times of one part of a walk.

    `given` are the inputs that came with it, kept to begin again. `emitted` are the (name, iteration) that the client
    has, which are not sent twice. `walk_id` changes when the walk is resumed, `start` does not. `asked` are the ranks
    that owe an answer, with the caches asked for (and whether the last answer was lost). `fetched` by (rank, cache) and
    `pending` by cache, with the rank, are sequences that are not in our pages yet. `left` is what a part that is DONE
    persisted. `is_blocked`: what it sends waits for room in shared memory, `unsent` first; `held_back` are units that
    do not run before it has been sent, and `is_complete` says that nothing else is left to do. `pace` is what walks of
    its kind need; `ran_ns` what this one ran so far, `sure_ns` what of that every walk of its kind runs, as if alone,
    and `marks` what they were at each node. `is_trial`: it looks hopeless and runs all the same. `player`: of somebody
    who listens, where that counts.
    """

    start: StartWalk
    loaded: LoadedModel
    part: Part
    memory: WalkMemory
    seed: int
    walk_id: int
    given: Mapping[str, Any]
    pace: Pace
    player: Player | None = None
    stage: Stage = Stage.WAITING
    run: WalkRun | None = None
    begun: bool = False  # has computed or received something: an anytime walk goes on past its deadline
    yielding: bool = False  # the conductor was asked to suspend it
    num_ready: int = 0
    left: dict[str, Any] = field(default_factory=dict)
    asked: dict[int, dict[str, bool]] = field(default_factory=dict)
    fetched: dict[tuple[int, str], list[Delta]] = field(default_factory=dict)
    pending: dict[str, list[tuple[int, list[Delta]]]] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    emitted: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    is_blocked: bool = False
    unsent: list[Piece] = field(default_factory=list)
    held_back: list[Unit[Work]] = field(default_factory=list)
    is_complete: bool = False
    times: dict[int, NodeTime] = field(default_factory=dict)
    ran_ns: int = 0
    sure_ns: int = 0
    marks: list[Mark] = field(default_factory=list)
    is_trial: bool = False
    flags: list[str] = field(default_factory=list)
    accounted_ns: int = 0
    wait_ns: int = 0
    run_ns: int = 0

    @property
    def request_id(self) -> str:
        return self.start.request_id

    @property
    def age(self) -> int:
        return self.start.age

    @property
    def spans_ranks(self) -> bool:
        return len(self.part.ranks) > 1

    def add_step(
        self, firing: Firing, queue_us: float, duration_ns: int, alone_ns: int, num_own: int, num_others: int
    ) -> None:
        """Account one step that this request took part in, with so many units of its own and of other requests. Without
        these it might have taken `alone_ns`."""
        index, iteration = firing.node_index, firing.iteration
        time = self.times.get(index)
        if time is None:
            time = self.times[index] = NodeTime()
        time.num_steps += 1
        time.queue_us += queue_us
        time.run_us += duration_ns / 1e3
        time.batched_with += num_others
        time.batched_own += num_own - 1
        position, marks = (index, iteration), self.marks
        if len(marks) < MAX_MARKS and (not marks or marks[-1][0] != position):  # else a later part of the same call
            marks.append((position, self.ran_ns, self.sure_ns))
        own_ns = duration_ns // num_own
        self.ran_ns += own_ns
        for depth in self.part.unsure_depths[index]:
            if iteration[depth]:
                return
        self.sure_ns += min(own_ns, alone_ns)

    def account(self, ready_ns: int, start_ns: int, end_ns: int) -> None:
        """A step in which a unit of it ran that could since `ready_ns`: time waiting or running, counted once however
        many of its units wait or run at a time."""
        accounted_ns = self.accounted_ns
        since_ns = ready_ns if ready_ns > accounted_ns else accounted_ns
        if since_ns < start_ns:
            self.wait_ns += start_ns - since_ns
        self.run_ns += end_ns - (start_ns if start_ns > accounted_ns else accounted_ns)
        self.accounted_ns = end_ns

    def node_times(self) -> dict[str, NodeTime]:
        return {self.part.program.nodes[index].name: time for index, time in self.times.items()}

    def loop_us(self) -> dict[str, float]:
        """Microseconds of node time inside each loop."""
        sums: dict[str, float] = {}
        for index, time in self.times.items():
            for loop in self.part.loops_around[index]:
                sums[loop] = sums.get(loop, 0.0) + time.run_us
        return sums

    def note_flags(self, flags: tuple[str, ...]) -> None:
        self.flags.extend(flag for flag in flags if flag not in self.flags)

    def drop_progress(self) -> None:
        """Give back every page and drop every token; as if the part had not begun."""
        if self.run is not None:
            self.run.abandon()
            self.run = None
        self.memory.discard()
        self.num_ready = 0
        self.ran_ns = self.sure_ns = 0
        self.marks = []
        self.left, self.pending = {}, {}
        self.sends, self.emissions, self.flags = [], [], []
        self.is_blocked, self.is_complete, self.unsent, self.held_back = False, False, [], []


def request_seed(start: StartWalk) -> int:
    """The request's option `seed`, or else a number that its id stands for."""
    seed = start.params.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        return seed
    return zlib.crc32(start.request_id.encode())


def request_kind(start: StartWalk) -> tuple[object, ...]:
    """What sets how long a walk is, besides the walk: whole numbers among the options, and the shapes of the inputs."""
    numbers = [(name, value) for name, value in start.params.items() if type(value) is int and name != "seed"]
    return tuple(numbers), tuple([(name, ref.shape) for name, ref in start.inputs.items()])
