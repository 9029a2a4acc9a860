"""Everything that processes of a deployment say to one another, as typed records.

Addresses are "server", "conductor" and "worker/<rank>". Times are nanoseconds on the machine's monotonic clock, which
all processes of one machine share; durations are microseconds.
"""

from __future__ import annotations

from typing import Union

import msgspec

ParamField = Union[bool, int, float, str, list[float]]


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """A block of the shared-memory arena of `owner`; `block_id` is what a Release names."""

    owner: str
    owner_pid: int
    fd: int
    arena_id: bytes
    offset: int
    num_bytes: int
    block_id: int


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """A tensor by value (`inline`, small ones) or by reference (`segment`). dtype: numpy's names and "bfloat16"."""

    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None = None
    segment: SegmentRef | None = None


class NodeTime(msgspec.Struct, array_like=True):
    """What one node cost one request: steps taken, microseconds waiting in the ready set and running (batch time)."""

    num_steps: int = 0
    queue_us: float = 0.0
    run_us: float = 0.0
    batched_with: int = 0


# --- server -> conductor ---------------------------------------------------------------------------------------------


class OpenSession(msgspec.Struct, tag=True):
    """Keep state for `session_id` between requests (what walks persist). Answered by SessionOpened or RequestFailed
    with the session id as request id.

    With `rate_hz` it is a control session, which runs `task` with `params` so often: it is admitted only if every rank
    has the time, and alone may submit work of class control, under its own name as `client`. `takes_over` is a session
    whose robot has come back with this one, and whose place it gets.
    """

    session_id: str
    model: str
    client: str = ""
    criticality: str = "planning"
    task: str = ""
    rate_hz: float = 0.0
    params: dict[str, ParamField] = {}
    takes_over: str = ""


class CloseSession(msgspec.Struct, tag=True):
    """Free all that the session holds; requests of it that are running are cancelled."""

    session_id: str


class Submit(msgspec.Struct, tag=True):
    """Run one task. `session_id` None: state lives as long as the request. Inputs are already validated.

    Answered by any number of Emitted (from workers, straight to the server), then by one Finished or RequestFailed.
    `warmup_on` is what a WarmUp has as `replicas`: the request runs there, although these may not serve yet. `is_cold`:
    it is the first of its kind there, so its times say nothing. `client` is whom it counts for: the connection that it
    came by, or the control session; "" nobody.
    """

    request_id: str
    model: str
    task: str
    inputs: dict[str, TensorRef]
    params: dict[str, ParamField]
    session_id: str | None = None
    deadline_ns: int | None = None
    criticality: str = "planning"
    reply_to: str = "server"
    warmup_on: list[int] | None = None
    is_cold: bool = False
    client: str = ""


class Warmed(msgspec.Struct, tag=True):
    """Every task of the model has run once where WarmUp said; `reason` if one could not."""

    model: str
    generation: int
    reason: str = ""


class CancelRequest(msgspec.Struct, tag=True):
    """The client went away or took the request back (server -> conductor -> every rank of the request)."""

    request_id: str


# --- conductor -> server ---------------------------------------------------------------------------------------------


class SessionOpened(msgspec.Struct, tag=True):
    session_id: str


class Finished(msgspec.Struct, tag=True):
    """The request is complete once `num_emitted` Emitted records have arrived; they travel another way, from `ranks`,
    which are all that it ran on. `wait_us` and `run_us`: see WalkDone, summed."""

    request_id: str
    num_emitted: int
    node_times: dict[str, NodeTime]
    loop_us: dict[str, float]
    num_iterations: dict[str, int]
    total_us: float
    flags: list[str] = []
    ranks: list[int] = []
    wait_us: float = 0.0
    run_us: float = 0.0


class WarmUp(msgspec.Struct, tag=True):
    """Ranks of the model have loaded: run each task once with `replicas`, which are ranks, one for each of the model's
    replica groups, then answer Warmed with this `generation`, which is another one each time. `at_start`: the model
    has never served, so if this fails the deployment cannot start."""

    model: str
    generation: int
    replicas: list[int]
    at_start: bool = False


class RequestFailed(msgspec.Struct, tag=True):
    """`code` is one of errors.ERRORS_BY_CODE; `message` is meant for the client."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None


class ServingState(msgspec.Struct, tag=True):
    """Health of a model: serving while each of its nodes has a rank that lives and has warmed up, once all have."""

    model: str
    serving: bool
    reason: str = ""


# --- conductor <-> worker --------------------------------------------------------------------------------------------


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


# --- worker <-> worker -----------------------------------------------------------------------------------------------


class TokenValue(msgspec.Struct, frozen=True, array_like=True):
    """A value as indices into the message's tensors.

    `kind` "tensor": one of them; "list": a collected list; "stacked": a list of equal shapes, as one tensor with one
    more leading dimension; "nested": lists of lists, in order of writing, a list of n being -1 - n before its entries;
    "none": no value at all.
    """

    indices: list[int]
    kind: str = "tensor"


class Token(msgspec.Struct, frozen=True, array_like=True):
    """See program.Send: what `index` names depends on `kind`."""

    kind: str
    index: int
    tag: tuple[int, ...]
    value: TokenValue
    flag: bool = False


class SequenceDelta(msgspec.Struct, frozen=True, array_like=True):
    """What is new in one sequence of a cache: positions `start` to `start + num_tokens`; what was there from `start` on
    is replaced. `num_tokens` -1: the sequence was released. `pages` is [num_layers, 2, num_tokens, num_kv_heads,
    head_dim], as an index into the message's tensors, or -1. `history`: see cache.moving.Delta."""

    label: list[str | int]
    start: int
    num_tokens: int
    pages: int = -1
    history: list[int] = []


class CacheDelta(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of `cache` that changed since they last went this way."""

    cache: str
    sequences: list[SequenceDelta]


class Tokens(msgspec.Struct, tag=True):
    """What a step on one rank gives to the part of the same walk on another rank. `caches` hold before the tokens."""

    request_id: str
    walk_id: int
    tensors: list[TensorRef]
    tokens: list[Token]
    caches: list[CacheDelta] = []


class FetchScope(msgspec.Struct, tag=True):
    """Send what `names` and `caches` hold under `scope`, for the walk `walk_id` that waits on rank `rank`.

    `caches` maps to whether what was sent the last time has been lost, so that its sender must start from what was
    there before; else only what changed since comes. `left_by` are the walks that left what is asked for: their
    requests have finished, even where the conductor's word of it is still under way.
    """

    request_id: str
    walk_id: int
    rank: int
    model: str
    scope: str
    names: list[str]
    caches: dict[str, bool]
    left_by: list[int] = []


class Fetched(msgspec.Struct, tag=True):
    """The answer to FetchScope. `missing` are names that the scope does not hold: it was released meanwhile."""

    request_id: str
    walk_id: int
    rank: int
    tensors: list[TensorRef]
    values: dict[str, TokenValue]
    caches: list[CacheDelta]
    missing: list[str] = []


# --- worker -> server, and the tensor plane --------------------------------------------------------------------------


class Emitted(msgspec.Struct, tag=True):
    """One tensor for the client. `iteration` has one entry per enclosing loop; `index` counts a request's emissions in
    one walk on one rank; `walk` names the walk."""

    request_id: str
    walk: str
    index: int
    name: str
    iteration: tuple[int, ...]
    tensor: TensorRef


class EmittedGroup(msgspec.Struct, tag=True):
    """Several tensors that one step of a walk gives to the client, in order."""

    records: list[Emitted]


class Release(msgspec.Struct, tag=True):
    """`holder` no longer reads these blocks of the addressee's arena."""

    holder: str
    block_ids: list[int]


class PeerGone(msgspec.Struct, tag=True):
    """A process died: drop what it held."""

    address: str


Message = Union[
    OpenSession, CloseSession, Submit, Warmed, CancelRequest, SessionOpened, Finished, WarmUp, RequestFailed,
    ServingState, WorkerReady, Admitted, Heartbeat, StartWalk, WalkDone, WalkFailed, WalkYields, SuspendWalk,
    ResumeWalk, ReleaseScope, AskStats, Stats, AskTrace, Trace, Drain, Shutdown, Tokens, FetchScope, Fetched,
    Emitted, EmittedGroup, Release, PeerGone,
]  # fmt: skip
