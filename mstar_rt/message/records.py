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
    with the session id as request id."""

    session_id: str
    model: str


class CloseSession(msgspec.Struct, tag=True):
    """Free all that the session holds; requests of it that are running are cancelled."""

    session_id: str


class Submit(msgspec.Struct, tag=True):
    """Run one task. `session_id` None: state lives as long as the request. Inputs are already validated.

    Answered by any number of Emitted (from workers, straight to the server), then by one Finished or RequestFailed.
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


class CancelRequest(msgspec.Struct, tag=True):
    """The client went away or took the request back (server -> conductor -> worker)."""

    request_id: str


# --- conductor -> server ---------------------------------------------------------------------------------------------


class SessionOpened(msgspec.Struct, tag=True):
    session_id: str


class Finished(msgspec.Struct, tag=True):
    """The request is complete once `num_emitted` Emitted records have arrived (they travel another way)."""

    request_id: str
    num_emitted: int
    node_times: dict[str, NodeTime]
    loop_us: dict[str, float]
    num_iterations: dict[str, int]
    total_us: float
    flags: list[str] = []


class RequestFailed(msgspec.Struct, tag=True):
    """`code` is one of errors.ERRORS_BY_CODE; `message` is meant for the client."""

    request_id: str
    code: str
    message: str


class ServingState(msgspec.Struct, tag=True):
    """Health of a model: serving only when every rank it uses has warmed up and lives."""

    model: str
    serving: bool
    reason: str = ""


# --- conductor <-> worker --------------------------------------------------------------------------------------------


class WorkerReady(msgspec.Struct, tag=True):
    """A worker has loaded and warmed up its nodes."""

    rank: int
    pid: int
    models: list[str]
    warmup_ms: float


class StartWalk(msgspec.Struct, tag=True):
    """Run one walk of a request on this worker. Emitted tensors go to `reply_to`, persisted ones stay under `scope`.

    `inputs` come with the request's first walk; with `keep_inputs` later walks of the request see them too, until the
    scope named like the request is released.
    """

    request_id: str
    model: str
    walk: str
    scope: str
    inputs: dict[str, TensorRef]
    params: dict[str, ParamField]
    deadline_ns: int | None
    criticality: str
    reply_to: str
    anytime: bool = False
    keep_inputs: bool = False


class WalkDone(msgspec.Struct, tag=True):
    request_id: str
    walk: str
    num_emitted: int
    node_times: dict[str, NodeTime]
    loop_us: dict[str, float]
    num_iterations: dict[str, int]
    flags: list[str] = []


class WalkFailed(msgspec.Struct, tag=True):
    request_id: str
    walk: str
    code: str
    message: str


class ReleaseScope(msgspec.Struct, tag=True):
    """Free what walks persisted under this scope (a session, or a request without one)."""

    scope: str


class AskStats(msgspec.Struct, tag=True):
    reply_to: str
    ask_id: int


class Stats(msgspec.Struct, tag=True):
    """A snapshot of counters and gauges by name, e.g. {"pages_free/tabletop/predictor": 512.0}."""

    source: str
    ask_id: int
    values: dict[str, float]


class Drain(msgspec.Struct, tag=True):
    """Finish what runs, accept nothing new."""


class Shutdown(msgspec.Struct, tag=True):
    """Stop now; whatever still runs is dropped."""


# --- worker -> server, and the tensor plane --------------------------------------------------------------------------


class Emitted(msgspec.Struct, tag=True):
    """One tensor for the client. `iteration` has one entry per enclosing loop; `index` counts a request's emissions in
    one walk; `walk` names the walk."""

    request_id: str
    walk: str
    index: int
    name: str
    iteration: tuple[int, ...]
    tensor: TensorRef


class Release(msgspec.Struct, tag=True):
    """`holder` no longer reads these blocks of the addressee's arena."""

    holder: str
    block_ids: list[int]


class PeerGone(msgspec.Struct, tag=True):
    """A process died: drop what it held."""

    address: str


Message = Union[
    OpenSession, CloseSession, Submit, CancelRequest, SessionOpened, Finished, RequestFailed, ServingState, WorkerReady,
    StartWalk, WalkDone, WalkFailed, ReleaseScope, AskStats, Stats, Drain, Shutdown, Emitted, Release,
    PeerGone,
]  # fmt: skip
