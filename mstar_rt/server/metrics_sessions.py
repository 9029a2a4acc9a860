"""How each open session is served: what `Runtime.Sessions` tells."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mstar_rt.clock import Clock
from mstar_rt.errors import DeadlineExceeded
from mstar_rt.protos import request_pb2
from mstar_rt.protos import runtime_pb2 as wire
from mstar_rt.server.call_timer import CallTimer

WINDOW = 512
"""Answers whose latencies are kept."""
RATE_WINDOW_NS = 10_000_000_000


@dataclass(eq=False)
class SessionMeter:
    """Counts of one session. Latencies are from the arrival of what is answered to the moment at which its answer is
    handed to the transport."""

    session_id: str
    kind: str
    model: str
    client: str
    opened_ns: int
    asked_hz: float = 0.0
    budget_ms: float = 0.0
    num_answered: int = 0
    num_missed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    last: request_pb2.Timing | None = None
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        self.track = f"robot {self.session_id}"

    def answered(
        self, now_ns: int, latency_ns: int, timing: request_pb2.Timing | None = None, missed: bool = False
    ) -> None:
        self.num_answered += 1
        self.num_missed += missed
        self.last = timing
        self._recent.append((now_ns, latency_ns))

    def command(self, timer: CallTimer, error: Exception | None) -> None:
        """A command of a session is answered, with an error if there is one."""
        latency_ns = int(timer.elapsed_us * 1e3)
        if error is None:
            self.answered(timer.arrived_ns + latency_ns, latency_ns)
        elif isinstance(error, DeadlineExceeded):
            self.num_missed += 1

    def info(self, now_ns: int) -> wire.SessionInfo:
        age_ns = now_ns - self.opened_ns
        info = wire.SessionInfo(
            session_id=self.session_id,
            kind=self.kind,
            model=self.model,
            client=self.client,
            age_s=age_ns / 1e9,
            asked_hz=self.asked_hz,
            budget_ms=self.budget_ms,
            answered_hz=self._answered_hz(now_ns, age_ns),
            num_answered=self.num_answered,
            num_missed=self.num_missed,
            dropped=self.dropped,
            last=self.last,
        )
        if self._recent:
            latencies = sorted(latency_ns for _, latency_ns in self._recent)
            info.p50_ms = _quantile(latencies, 0.5) / 1e6
            info.p99_ms = _quantile(latencies, 0.99) / 1e6
        return info

    def _answered_hz(self, now_ns: int, age_ns: int) -> float:
        """Over the last ten seconds, or as far back as it is known."""
        span_ns = min(RATE_WINDOW_NS, age_ns)
        if len(self._recent) == WINDOW:
            span_ns = min(span_ns, now_ns - self._recent[0][0])
        num_recent = sum(at_ns >= now_ns - span_ns for at_ns, _ in self._recent)
        return num_recent * 1e9 / span_ns if span_ns > 0 else 0.0


def _quantile(ordered: Sequence[int], q: float) -> int:
    """The smallest value that at least the share `q` of all does not exceed."""
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


class SessionMeters:
    """Of all open sessions, in the order in which they were opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, SessionMeter] = {}

    def open(
        self, session_id: str, kind: str, model: str, client: str, asked_hz: float = 0.0, budget_ms: float = 0.0
    ) -> SessionMeter:
        meter = SessionMeter(session_id, kind, model, client, self._clock.now_ns(), asked_hz, budget_ms)
        self._open[session_id] = meter
        return meter

    def close(self, meter: SessionMeter) -> None:
        """Idempotent."""
        self._open.pop(meter.session_id, None)

    def infos(self) -> list[wire.SessionInfo]:
        now_ns = self._clock.now_ns()
        return [meter.info(now_ns) for meter in self._open.values()]
