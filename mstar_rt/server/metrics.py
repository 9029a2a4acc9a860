"""What the server itself measures: requests, control ticks and sessions, in figures and as spans. Whoever shows it asks
for it.

A control tick waits 3 us for it, and costs 3 more once its chunk is on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mstar_rt.clock import Clock
from mstar_rt.histogram import Histogram
from mstar_rt.message import Distribution
from mstar_rt.protos.control_pb2 import ActionChunk
from mstar_rt.protos.request_pb2 import Timing
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.metrics_sessions import SessionMeter, SessionMeters
from mstar_rt.server.request_stream import RequestStream
from mstar_rt.trace import TraceRing

PARTS = ("decode", "queue", "run", "transport", "encode")
LATE, DROPPED = "late", "dropped"
MANY, MAX_NOTED = 16, 128
"""Answers that are noted before they are counted: after a tick, or in any case. One at a time that takes three times as
long: its code and data have left the processor's caches in between."""
REQUEST_TRACKS = {kind: f"requests, {kind}" for kind in ("control", "planning", "generation")}


@dataclass(frozen=True, slots=True)
class Ended:
    """A request or a tick that has ended, for whoever exports it. `parts_us` in the order of PARTS, empty without an
    answer."""

    kind: str
    model: str
    task: str
    criticality: str
    request_id: str
    session_id: str
    start_ns: int
    end_ns: int
    code: str
    parts_us: tuple[float, ...] = ()


class ServerMeters:
    """`on_missed` hears of the request id of every control tick that missed its deadline; `on_ended` of everything that
    ends. Both are called on the event loop and return at once.
    """

    def __init__(self, clock: Clock, capacity: int = 8192) -> None:
        self._clock = clock
        self.sessions = SessionMeters(clock)
        self.trace = TraceRing(capacity)
        self.counters: dict[str, float] = {}
        self.on_missed: Callable[[str], None] | None = None
        self.on_ended: Callable[[Ended], None] | None = None
        self._num_ended: Counter[tuple[str, str]] = Counter()
        self._num_missed: Counter[tuple[str, str]] = Counter()
        self._of_model: dict[str, Histogram] = {}
        self._of_task: dict[tuple[str, str], list[Histogram]] = {}
        self._noted: list[tuple[str, str, Timing]] = []
        self._noted_ticks: list[tuple[str, float]] = []

    # ---- requests

    def answered(self, stream: RequestStream, timing: Timing) -> None:
        """Its last answer is made."""
        self._noted.append((stream.model, stream.task, timing))
        if len(self._noted) >= MAX_NOTED:
            self.count()
        if self.on_ended is not None and stream.criticality != "control":  # of those the tick is told
            now_ns = self._clock.now_ns()
            self.on_ended(_ended(stream, now_ns - int(timing.total_us * 1e3), now_ns, "OK", parts_of(timing)))

    def ended(self, stream: RequestStream) -> None:
        """Nothing of it arrives any more: it was answered, failed, or nobody wants it."""
        failure = stream.failure
        code = "OK" if stream.complete else "CANCELLED" if failure is None else failure.code
        self._num_ended[stream.criticality, code] += 1
        track = REQUEST_TRACKS.get(stream.criticality, "requests")
        name = f"{stream.model}.{stream.task}"
        self.trace.record(name, track, stream.submitted_ns, stream.ended_ns, stream.request_id, code)
        if self.on_ended is not None and not stream.complete:
            self.on_ended(_ended(stream, stream.submitted_ns, stream.ended_ns, code))

    # ---- control ticks

    def tick(
        self,
        meter: SessionMeter,
        seq: int,
        timer: CallTimer,
        deadline_ns: int,
        sent_ns: int,
        chunk: ActionChunk,
    ) -> None:
        """A chunk was handed to the transport."""
        request_id, timing, arrived_ns = chunk.request_id, chunk.timing, timer.arrived_ns
        is_late = sent_ns > deadline_ns
        meter.answered(sent_ns, sent_ns - arrived_ns, timing, is_late)
        self._noted_ticks.append((meter.model, (sent_ns - arrived_ns) / 1e3))
        self._record_tick(meter, seq, timer, sent_ns, request_id, LATE if is_late else "")
        if self.on_ended is not None:
            code = "DEADLINE_EXCEEDED" if is_late else "OK"
            self._tick_ended(meter, timer, sent_ns, request_id, code, parts_of(timing))
        if is_late:
            self._missed(meter, LATE, request_id)
        if len(self._noted) >= MANY:
            self.count()

    def tick_dropped(self, meter: SessionMeter, seq: int, timer: CallTimer, request_id: str) -> None:
        """An observation whose deadline passed, or could not be met, before it had a chunk."""
        now_ns = self._clock.now_ns()
        meter.num_missed += 1
        self._record_tick(meter, seq, timer, now_ns, request_id, DROPPED)
        if self.on_ended is not None:
            self._tick_ended(meter, timer, now_ns, request_id, "DEADLINE_EXCEEDED", ())
        self._missed(meter, DROPPED, request_id)

    def _missed(self, meter: SessionMeter, how: str, request_id: str) -> None:
        self._num_missed[meter.model, how] += 1
        if self.on_missed is not None:
            self.on_missed(request_id)

    def _record_tick(
        self, meter: SessionMeter, seq: int, timer: CallTimer, now_ns: int, request_id: str, missed: str
    ) -> None:
        track = meter.track
        detail = {"seq": seq, "missed": missed} if missed else {"seq": seq}
        self.trace.record("tick", track, timer.arrived_ns, now_ns, request_id, detail)
        self.trace.record_pieces(track, timer.pieces, request_id)

    def _tick_ended(
        self, meter: SessionMeter, timer: CallTimer, now_ns: int, request_id: str, code: str, parts: tuple[float, ...]
    ) -> None:
        assert self.on_ended is not None
        self.on_ended(
            Ended(
                "tick", meter.model, "", "control", request_id, meter.session_id, timer.arrived_ns, now_ns, code, parts
            )
        )

    # ---- what is shown

    def count(self) -> None:
        """What was noted."""
        for model, task, timing in self._noted:
            of_task = self._of_task.get((model, task))
            if of_task is None:
                of_task = self._of_task[model, task] = [Histogram() for _ in (*PARTS, "total")]
            for histogram, value_us in zip(of_task, (*parts_of(timing), timing.total_us)):
                histogram.observe(value_us)
        for model, tick_us in self._noted_ticks:
            of_model = self._of_model.get(model)
            if of_model is None:
                of_model = self._of_model[model] = Histogram()
            of_model.observe(tick_us)
        self._noted.clear()
        self._noted_ticks.clear()

    def values(self) -> dict[str, float]:
        ended = {f"requests_ended/{kind}/{code}": float(count) for (kind, code), count in self._num_ended.items()}
        missed = {f"ticks_missed/{model}/{how}": float(count) for (model, how), count in self._num_missed.items()}
        return {**self.counters, **ended, **missed}

    def histograms(self) -> dict[str, Distribution]:
        self.count()
        found = {f"tick_us/{model}": histogram for model, histogram in self._of_model.items()}
        for (model, task), (*parts, total) in self._of_task.items():
            found[f"request_us/{model}/{task}"] = total
            found |= {f"part_us/{part}/{model}/{task}": each for part, each in zip(PARTS, parts, strict=True)}
        return {name: Distribution(list(h.bounds), list(h.counts), h.total) for name, h in found.items()}


def _ended(stream: RequestStream, start_ns: int, end_ns: int, code: str, parts_us: tuple[float, ...] = ()) -> Ended:
    return Ended(
        "request",
        stream.model,
        stream.task,
        stream.criticality,
        stream.request_id,
        "",
        start_ns,
        end_ns,
        code,
        parts_us,
    )


def parts_of(timing: Timing) -> tuple[float, ...]:
    """Microseconds, in the order of PARTS."""
    return timing.decode_us, timing.queue_us, timing.run_us, timing.transport_us, timing.encode_us
