"""What server and conductor say to one another: sessions, requests and their ends, which models serve."""

from __future__ import annotations

import msgspec

from mstar_rt.message.tensors import NodeTime, ParamField, TensorRef


class Playback(msgspec.Struct, frozen=True):
    """Somebody listens to `output` while it is made: mono samples, which he plays from the first one on, `buffer_s`
    seconds later. Only the order of work depends on it."""

    output: str
    sample_rate_hz: int
    buffer_s: float = 0.0


class OpenSession(msgspec.Struct, tag=True):
    """Keep state for `session_id` between requests (what walks persist). Answered by SessionOpened or RequestFailed
    with the session id as request id.

    With `rate_hz` it is a control session, which runs `task` with `params` so often: it is admitted only if every rank
    has the time, and alone may submit work of class control, under its own name as `client`. `takes_over` is a session
    whose robot has come back with this one, and whose place it gets. `deadline_s` is within what each run has to end;
    None: before the next one.
    """

    session_id: str
    model: str
    client: str = ""
    criticality: str = "planning"
    task: str = ""
    rate_hz: float = 0.0
    params: dict[str, ParamField] = {}
    takes_over: str = ""
    deadline_s: float | None = None


class CloseSession(msgspec.Struct, tag=True):
    """Free all that the session holds; requests of it that are running are cancelled."""

    session_id: str


class Submit(msgspec.Struct, tag=True):
    """Run one task. `session_id` None: state lives as long as the request. Inputs are already validated.

    Answered by any number of Emitted (from workers, straight to the server), then by one Finished or RequestFailed.
    `warmup_on` is what a WarmUp has as `replicas`: the request runs there, although these may not serve yet. `is_cold`:
    it is the first of its kind there, so its times say nothing. `client` is whom it counts for: the connection that it
    came by, or the control session; "" nobody. `playback`: its output is listened to. `num_together`: so many requests
    of one call, this one among them, come at once and do the same.
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
    playback: Playback | None = None
    num_together: int = 1


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
