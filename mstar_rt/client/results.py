"""What calls return: plain values and numpy arrays, no protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mstar_rt.client.control.robot_schema import PolicyInfo
from mstar_rt.trace import Span

OptionValue = bool | int | float | str | tuple[float, ...]


@dataclass(frozen=True)
class NodeTime:
    """Microseconds waiting and running (the whole batch's time), steps, and units of other requests in
    them.
    """

    num_steps: int
    queue_us: float
    run_us: float
    batched_with: int


@dataclass(frozen=True)
class LoopTime:
    num_iterations: int
    run_us: float


@dataclass(frozen=True)
class Timing:
    """Where the server spent the time, in microseconds.

    `total_us` is `decode_us`, `queue_us` (something could run and nothing of this request did), `run_us` (steps with
    something of it ran), `transport_us` (messages between processes and what they do around steps), `encode_us`, and
    what is not accounted for: the server's own turns. Network time is not in it, see `network_us`.
    """

    decode_us: float
    queue_us: float
    nodes: Mapping[str, NodeTime]
    loops: Mapping[str, LoopTime]
    runtime_us: float
    encode_us: float
    total_us: float
    transport_us: float = 0.0
    run_us: float = 0.0

    @property
    def unaccounted_us(self) -> float:
        """Less than 0 where parts overlap: answers encoded while the request went on, ranks side by side."""
        parts_us = self.decode_us + self.queue_us + self.run_us + self.transport_us + self.encode_us
        return self.total_us - parts_us

    def network_us(self, elapsed_s: float) -> float:
        """What a call that took the caller `elapsed_s` spent outside the server: the network, and both ends' gRPC."""
        return elapsed_s * 1e6 - self.total_us


@dataclass(frozen=True)
class Encoding:
    """latents [T, P, D] float32, layer-normed."""

    latents: np.ndarray
    timing: Timing
    request_id: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolloutStep:
    """The world after action `step` (from 0): latent [P, D] or [B, P, D], pose [A] or [B, A]; None if not
    sent.
    """

    step: int
    latent: np.ndarray | None
    pose: np.ndarray | None
    goal_distance: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutDone:
    """The end of a rollout; flags may hold "beyond_trained_positions"."""

    num_steps: int
    timing: Timing
    request_id: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskOutput:
    """One value of one output; `iteration` has one entry per loop around the node that made it, outermost first."""

    name: str
    iteration: tuple[int, ...]
    value: np.ndarray
    walk: str


@dataclass(frozen=True)
class TaskDone:
    """The end of a task."""

    timing: Timing
    request_id: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanImprovement:
    """The plan after `iteration` (from 0): actions [H, A], costs of that iteration, microseconds since
    arrival; elite_std [H, 4] is the elites' spread in x, y, z (metres) and gripper, None if not sent.
    """

    iteration: int
    actions: np.ndarray
    cost: float
    elite_mean_cost: float
    elapsed_us: float
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    elite_std: np.ndarray | None = None


@dataclass(frozen=True)
class Plan:
    """actions [H, A] float32: end-effector deltas per step, metres, radians, gripper closedness, base frame.

    `cost` is that of the last iteration's best candidate, `elite_std` the spread of its elites. `flags`: "deadline" if
    the budget ended the search, "converged" if the tolerance did, "not_searched" if there was no time for one iteration
    and this is where the search would have started. `observation_id`: the observation of the session that it started
    from.
    """

    actions: np.ndarray
    cost: float
    elite_mean_cost: float
    num_iterations: int
    timing: Timing
    request_id: str
    improvements: tuple[PlanImprovement, ...] = ()
    flags: tuple[str, ...] = ()
    observation_id: int | None = None
    elite_std: np.ndarray | None = None


@dataclass(frozen=True)
class Observed:
    """An observation that the server accepted. `num_frames` of the history are what plans and rollouts see now; 0 in a
    session that keeps none.
    """

    message_id: int
    decode_us: float
    timing: Timing
    num_frames: int = 0
    flags: tuple[str, ...] = ()
    request_id: str = ""


@dataclass(frozen=True)
class SessionEvent:
    """Something that happened to message `message_id`: "observation_dropped" (replaced before use) or
    "recovering".
    """

    kind: str
    message_id: int
    message: str
    replaced_by: int | None = None


@dataclass(frozen=True)
class ModelInfo:
    name: str
    family: str
    doc: str
    serving: bool
    reason: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class TensorInfo:
    """`shape` mixes sizes and symbols; `max_sizes` bounds symbols; the first of `dtypes` is the native
    one.
    """

    name: str
    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...]
    units: str
    doc: str
    optional: bool
    max_sizes: Mapping[str, int]


@dataclass(frozen=True)
class OptionInfo:
    """`default` None: required if `required`, otherwise unset."""

    name: str
    kind: str
    default: OptionValue | None
    required: bool
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    length: int | None
    units: str
    doc: str


@dataclass(frozen=True)
class TaskInfo:
    name: str
    doc: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    options: tuple[OptionInfo, ...]
    walks: tuple[str, ...]


@dataclass(frozen=True)
class WalkInfo:
    """A drawing of the walk, for terminals and as mermaid."""

    name: str
    text: str
    mermaid: str


@dataclass(frozen=True)
class NodePlace:
    """Where a node runs in some of the model's walks: one of `ranks` does it for a request. `dtype`: of its weights and
    products ("float32", "bfloat16"), whatever that of its inputs and outputs."""

    node: str
    walks: tuple[str, ...]
    ranks: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ModelDescription:
    """`policy`: what it is to a robot; None: `Client.control` does not take it."""

    model: ModelInfo
    tasks: Mapping[str, TaskInfo]
    walks: Mapping[str, WalkInfo]
    facts: Mapping[str, OptionValue]
    checkpoint: str
    policy: PolicyInfo | None = None
    places: tuple[NodePlace, ...] = ()


@dataclass(frozen=True)
class ServerInfo:
    version: str
    max_message_bytes: int
    uptime_s: float
    shared_memory: bool
    draining: bool
    services: tuple[str, ...]


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` values were at most `bounds[i]` and over the bound before; the last of `counts` over all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def num_values(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class RuntimeStats:
    """Counters and gauges, and histograms (times in microseconds), by process, then by name; `silent` processes did not
    answer in time."""

    processes: Mapping[str, Mapping[str, float]]
    silent: tuple[str, ...]
    histograms: Mapping[str, Mapping[str, Histogram]] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionInfo:
    """An open session. `kind`: "control", "world_model" or "tasks". `asked_hz` and `budget_ms` are 0 where it does not
    say. `answered_hz` is of the last ten seconds, `p50_ms` and `p99_ms` are of up to the last 512 answers (None before
    the first one), from arrival to answer at the server; counts are since it was opened. `missed` were answered after
    their deadline, or not at all for it; `dropped` not answered, by reason.
    """

    session_id: str
    kind: str
    model: str
    client: str
    age_s: float
    asked_hz: float
    budget_ms: float
    answered_hz: float
    p50_ms: float | None
    p99_ms: float | None
    num_answered: int
    num_missed: int
    dropped: Mapping[str, int]
    last: Timing | None


@dataclass(frozen=True)
class RuntimeTrace:
    """What the processes did lately, oldest first; `silent` ones did not answer in time."""

    processes: Mapping[str, tuple[Span, ...]]
    silent: tuple[str, ...]
