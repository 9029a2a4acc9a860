"""What the conductor remembers of requests and sessions: plain records."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_rt.message import NodeTime, Submit, WalkDone


@dataclass(slots=True)
class RequestState:
    """A request on its way through the walks of its task. `pending` are those not started, in order."""

    submit: Submit
    rank: int
    pending: list[str]
    num_walks: int
    start_ns: int
    anytime: bool
    num_emitted: int = 0
    node_times: dict[str, NodeTime] = field(default_factory=dict)
    loop_us: dict[str, float] = field(default_factory=dict)
    num_iterations: dict[str, int] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    @property
    def scope(self) -> str:
        """Where walks persist: the session, or the request itself when it has none."""
        return self.submit.session_id or self.submit.request_id

    def add(self, done: WalkDone) -> None:
        """Account one finished walk."""
        self.num_emitted += done.num_emitted
        self.flags.extend(done.flags)
        for name, time in done.node_times.items():
            total = self.node_times.setdefault(name, NodeTime())
            total.num_steps += time.num_steps
            total.queue_us += time.queue_us
            total.run_us += time.run_us
            total.batched_with += time.batched_with
        for loop, loop_us in done.loop_us.items():
            self.loop_us[loop] = self.loop_us.get(loop, 0.0) + loop_us
        for loop, count in done.num_iterations.items():
            self.num_iterations[loop] = self.num_iterations.get(loop, 0) + count


@dataclass(slots=True)
class SessionState:
    """A session outlives requests; what its walks persist lies on one rank."""

    session_id: str
    model: str
    rank: int
    requests: set[str] = field(default_factory=set)
