"""What conductor and workers say to one another: lives of workers, walks, and what every process is asked."""

from __future__ import annotations

import msgspec

from mstar_rt.message.requests import Playback
from mstar_rt.message.tensors import NodeTime, ParamField, TensorRef


class WorkerReady(msgspec.Struct, tag=True):
    """A worker has loaded its nodes. Answered by Admitted."""

    rank: int
    pid: int
    models: list[str]
    load_ms: float


class Admitted(msgspec.Struct, tag=True):
    """Walks up to this number were not meant for this life of the worker: tokens of theirs are to be dropped."""

    last_walk_id: int


class Heartbeat(msgspec.Struct, tag=True):
    """A worker lives. `step_ns` is when the step that runs now was begun on the machine's monotonic clock, 0 between
    steps; `node` is the node that it runs."""

    rank: int
    pid: int
    step_ns: int = 0
    node: str = ""


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """What an earlier walk left under the scope on another rank: a persisted tensor, or with `is_cache` the sequences
    of a cache that outlives walks. `walk_id` is the walk that left it; a copy fetched for that walk is still good."""

    name: str
    rank: int
    walk_id: int
    is_cache: bool = False


class StartWalk(msgspec.Struct, tag=True):
    """Run this rank's part of one walk of a request. Emitted tensors go to `reply_to`, persisted ones stay under
    `scope`.

    `walk_id` grows with every walk that the deployment starts, over all ranks; `age` is the first one of the request,
    so that of two requests the one of lower age is older. `node_ranks[i]` runs program node i. `inputs` holds what
    this rank reads; those named in `keep` stay for later walks of the request until the scope named like the request
    is released. `fetches` must have arrived before the first node runs. `sent_ns`: when it was sent, 0 if unknown.
    `is_warm_up`: nobody waits for it, and others may warm up beside it, so that it says little about what walks take.
    """

    request_id: str
    model: str
    walk: str
    walk_id: int
    age: int
    node_ranks: list[int]
    scope: str
    inputs: dict[str, TensorRef]
    params: dict[str, ParamField]
    deadline_ns: int | None
    criticality: str
    reply_to: str
    anytime: bool = False
    keep: list[str] = []
    fetches: list[Fetch] = []
    sent_ns: int = 0
    client: str = ""
    is_warm_up: bool = False
    playback: Playback | None = None


class SoundMade(msgspec.Struct, tag=True):
    """A rank of a walk that is listened to has made more sound, which has been played at `dry_ns` (to the others)."""

    request_id: str
    walk_id: int
    dry_ns: int


class WalkDone(msgspec.Struct, tag=True):
    """One rank's part of a walk is complete; the walk is when every rank has said so.

    `run_us` is the time during which a step of it ran, `wait_us` that during which something of it could run and
    nothing of it did: never both, so that they add up.
    """

    request_id: str
    walk_id: int
    rank: int
    num_emitted: int
    node_times: dict[str, NodeTime]
    loop_us: dict[str, float]
    num_iterations: dict[str, int]
    flags: list[str] = []
    wait_us: float = 0.0
    run_us: float = 0.0


class WalkFailed(msgspec.Struct, tag=True):
    """One rank cannot go on: the request fails, the conductor stops its other ranks."""

    request_id: str
    walk_id: int
    rank: int
    code: str
    message: str


class WalkYields(msgspec.Struct, tag=True):
    """A walk on several ranks must give its pages back so that an older one can finish (worker -> conductor)."""

    request_id: str
    walk_id: int
    rank: int


class SuspendWalk(msgspec.Struct, tag=True):
    """Drop pages, tokens and progress of the walk, keep its inputs (conductor -> every rank of the walk)."""

    request_id: str
    walk_id: int


class ResumeWalk(msgspec.Struct, tag=True):
    """Begin a suspended walk again, under a new number, from the inputs kept."""

    request_id: str
    walk_id: int


class ReleaseScope(msgspec.Struct, tag=True):
    """Free what is kept under this scope. A session: everything. A request: it has ended, and unless a CancelRequest
    came before, what it left for its session is the session's from now on; all else of it is dropped."""

    scope: str


class AskStats(msgspec.Struct, tag=True):
    reply_to: str
    ask_id: int


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """What a histogram has counted: `counts[i]` values up to `bounds[i]` and over the one before, the last one being
    those over all bounds; their sum."""

    bounds: list[float]
    counts: list[int]
    total: float


class Stats(msgspec.Struct, tag=True):
    """A snapshot of counters and gauges by name, e.g. {"pages_free/tabletop/predictor": 512.0}, and of histograms."""

    source: str
    ask_id: int
    values: dict[str, float]
    histograms: dict[str, Distribution] = {}


class AskTrace(msgspec.Struct, tag=True):
    """Send the spans that ended at `since_ns` or later. Answered by Trace."""

    reply_to: str
    ask_id: int
    since_ns: int


class Trace(msgspec.Struct, tag=True):
    """`rows` is JSON, see trace.TraceRing.encoded: whoever passes it on need not read it."""

    source: str
    ask_id: int
    rows: bytes


class Drain(msgspec.Struct, tag=True):
    """Finish what runs, accept nothing new."""


class Shutdown(msgspec.Struct, tag=True):
    """Stop now; whatever still runs is dropped."""
