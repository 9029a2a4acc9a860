"""The worker's loop: take in messages, form a batch, run it, hand on what comes out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from mstar_rt.clock import Clock
from mstar_rt.engine import Outcome, run_isolating_failures
from mstar_rt.message import (
    Admitted,
    AskStats,
    AskTrace,
    CancelRequest,
    Drain,
    Fetched,
    FetchScope,
    PeerGone,
    Release,
    ReleaseScope,
    ResumeWalk,
    Shutdown,
    SoundMade,
    StartWalk,
    Stats,
    SuspendWalk,
    Tokens,
    Trace,
)  # fmt: skip
from mstar_rt.trace import TraceRing
from mstar_rt.transport import ControlEndpoint, Envelope, TensorPlane
from mstar_rt.worker.active import Stage, Work
from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.heartbeat import HeartbeatThread
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.meters import Meters
from mstar_rt.worker.overruns import Overruns, Step
from mstar_rt.worker.page_pressure import PagePressure
from mstar_rt.worker.page_waiters import Waiter
from mstar_rt.worker.parts import Parts, has_more, items_of
from mstar_rt.worker.room import Room
from mstar_rt.worker.scheduler_choice import choose_policy
from mstar_rt.worker.unit import SchedulingPolicy, Unit
from mstar_rt.worker.walk_table import WalkTable
from mstar_rt.worker.walks import Walks

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0


class Worker:
    """One rank. Single-threaded: between two steps it reads its inbox, so a cancel waits for one step at most.

    Args:    endpoint: of the address "worker/<rank>". check_outputs, scheduling, lower_class_share, max_step_ms: see
             config.WorkerConfig. heartbeat: is told what runs; starting and stopping it is up to the caller. ran_ns:
             see Overruns.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        clock: Clock,
        device: str = "cpu",
        max_batch: int = 16,
        check_outputs: bool = False,
        heartbeat: HeartbeatThread | None = None,
        scheduling: str = "deadline",
        lower_class_share: float = 0.05,
        max_step_ms: float | None = None,
        ran_ns: Callable[[], int] | None = None,
    ) -> None:
        self.trace = TraceRing()
        self.stopped = False
        self._models = models
        self._endpoint = endpoint
        self._plane = plane
        self._clock = clock
        self._checks_outputs = check_outputs
        self._heartbeat = heartbeat
        rank = _rank_of(endpoint.address)
        max_step_ns = None if max_step_ms is None else int(max_step_ms * 1e6)
        self._costs = CostModel()
        self._scheduler: SchedulingPolicy[Work] = choose_policy(
            scheduling, max_batch, self._costs, lower_class_share, max_step_ns
        )
        self._meters = Meters()
        self._details = {model: {"model": model} for model in models}
        self._parts = Parts(max_step_ns)
        self._overruns = Overruns(max_step_ns, ran_ns)
        room = Room(plane, clock)
        self._table = WalkTable(models, endpoint, plane, rank, self._scheduler, self._meters, room)
        self._walks = Walks(
            self._table, models, endpoint, plane, clock, rank, device, self._scheduler, self._costs, check_outputs
        )
        self._pressure = PagePressure(self._table, self._walks, self._scheduler, endpoint, rank)
        self._is_stuck = False

    def run(self) -> None:
        """Serve until Shutdown."""
        while not self.stopped:
            self.turn(IDLE_WAIT_S)

    def turn(self, idle_wait_s: float) -> None:
        """Read the inbox, waiting for it only if there is nothing to do; then run one step."""
        table = self._table
        if not len(self._scheduler):
            self._plane.flush()
            self._meters.count()
        for envelope in self._endpoint.receive(self._wait_s(idle_wait_s)):
            self._is_stuck = False
            self._handle(envelope)
        if self.stopped:
            return
        now_ns = self._clock.now_ns()
        for walk in list(table.waiting()):
            table.fail_if_stalled(walk, now_ns)
        if len(table.room):
            table.room.try_again(now_ns)
        if table.pages_came:
            self._pressure.try_again()
        decision = self._scheduler.next_batch(now_ns)
        if decision.dropped:
            self._is_stuck = False
            self._drop(decision.dropped, now_ns)
        if decision.batch:
            self._is_stuck = False
            self._run_step(decision.batch, now_ns)
        elif table.waiters.any_waits:
            self._is_stuck = not self._pressure.relieve()

    def _wait_s(self, idle_wait_s: float) -> float:
        """How long to wait for messages."""
        table = self._table
        if len(self._scheduler) or table.pages_came or (table.waiters.any_waits and not self._is_stuck):
            return 0.0
        ends_ns = [end_ns for walk in table.waiting() if (end_ns := table.ends_at_ns(walk)) is not None]
        if len(table.room):
            ends_ns.append(table.room.first_end_ns)
        if not ends_ns:
            return idle_wait_s
        return min(idle_wait_s, max(0.0, (min(ends_ns) - self._clock.now_ns()) / 1e9))

    # --- inbox -------------------------------------------------------------------------------------------------------

    def _handle(self, envelope: Envelope) -> None:
        walks, table, message = self._walks, self._table, envelope.message
        match message:
            case Tokens():
                walks.receive(_rank_of(envelope.sender), message)
            case StartWalk():
                walks.start(message)
            case SoundMade():
                walks.note_sound(message)
            case Release():
                self._plane.on_release(message)
                table.room.came = True
            case ReleaseScope():
                table.release_scope(message.scope)
            case CancelRequest():
                table.cancel(message.request_id)
            case FetchScope():
                walks.give(message)
            case Fetched():
                walks.take(_rank_of(envelope.sender), message)
            case SuspendWalk():
                self._pressure.suspend(message)
            case ResumeWalk():
                self._pressure.resume(message)
            case Admitted():
                table.admit(message.last_walk_id)
            case PeerGone():
                self._endpoint.forget_peer(message.address)
                self._plane.forget_peer(message.address)
                table.room.came = True
            case AskStats():
                histograms = self._meters.histograms()
                stats = Stats(self._endpoint.address, message.ask_id, self.stats(), histograms)
                self._endpoint.send(message.reply_to, stats)
            case AskTrace():
                rows = self.trace.encoded(message.since_ns)
                self._endpoint.send(message.reply_to, Trace(self._endpoint.address, message.ask_id, rows))
            case Drain() | Shutdown():
                self.stopped = isinstance(message, Shutdown)
            case _:
                logger.error("%s got an unexpected %s", self._endpoint.address, type(message).__name__)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _run_step(self, batch: list[Unit[Work]], now_ns: int) -> None:
        units = [unit for unit in batch if self._may_run(unit, now_ns)]
        if not units:
            return
        first = units[0]
        engine, (model, node) = first.work.engine, first.engine_id
        num_items = len(units)
        if engine.in_parts:
            for unit in self._parts.cut(units):
                self._walks.put_back(unit)
            num_items = items_of(units)
        heartbeat = self._heartbeat
        if heartbeat is not None:
            heartbeat.step = (now_ns, node)
        if first.engine_id in self._overruns.watched:
            self._overruns.begin()
        start_ns = self._clock.now_ns()
        outcomes = run_isolating_failures(engine, [unit.work.call for unit in units])
        end_ns = self._walks.step_ended_ns = self._clock.now_ns()
        if heartbeat is not None:
            heartbeat.step = (0, "")
        self._measure(units, num_items, outcomes, start_ns, end_ns)
        ids = first.request_id if len(units) == 1 else tuple([unit.request_id for unit in units])
        self.trace.record(node, first.criticality, start_ns, end_ns, ids, self._details[model])
        if len(units) == 1:
            self._settle(first, outcomes[0], start_ns, end_ns, end_ns - start_ns, 1, 0)
        else:
            own = Counter([unit.request_id for unit in units])
            alone_ns = {num_own: self._alone_ns(units, end_ns - start_ns, num_own) for num_own in set(own.values())}
            for unit, outcome in zip(units, outcomes, strict=True):
                num_own = own[unit.request_id]
                self._settle(unit, outcome, start_ns, end_ns, alone_ns[num_own], num_own, len(units) - num_own)
        for unit in units:
            self._walks.flush(unit.work.walk, unit.work.firing)

    def _measure(
        self, units: list[Unit[Work]], num_items: int, outcomes: list[Outcome], start_ns: int, end_ns: int
    ) -> None:
        """Learn from the step; nothing about its cost if part of it was run twice, or not at all."""
        first, duration_ns = units[0], end_ns - start_ns
        in_parts = first.work.engine.in_parts
        self._scheduler.ran(units, duration_ns)
        self._meters.step(units, start_ns, end_ns)
        for outcome in outcomes:
            if outcome.result is None:
                return
        overruns = self._overruns
        if overruns.max_step_ns is not None and duration_ns > overruns.max_step_ns:
            usual_ns = self._costs.predict_ns(first.engine_id, first.batch_key, num_items)
            overruns.note(Step(first.engine_id, duration_ns, usual_ns, len(units), num_items, in_parts))
        if in_parts:
            self._parts.observe(first.engine_id, first.batch_key, num_items, duration_ns)
        is_warm_up = first.work.walk.start.is_warm_up and all(unit.work.walk.start.is_warm_up for unit in units)
        self._costs.observe(first.engine_id, first.batch_key, num_items, duration_ns, is_warm_up)

    def _alone_ns(self, units: list[Unit[Work]], duration_ns: int, num_own: int) -> int:
        """The share of the smallest unit of a step that took so long, had so many of one request been alone in it."""
        first = units[0]
        least_items = min([items_of([unit]) for unit in units]) if first.work.engine.in_parts else 1
        predicted_ns = self._costs.predict_ns(first.engine_id, first.batch_key, least_items * num_own)
        return (duration_ns if predicted_ns is None else min(predicted_ns, duration_ns)) // num_own

    def _drop(self, units: list[Unit[Work]], now_ns: int) -> None:
        """Answer for those that cannot make their deadlines any more."""
        for unit in units:
            unit.work.walk.num_ready -= 1
            if not self._table.drop(unit, now_ns):
                self._walks.put_back(unit)

    def _may_run(self, unit: Unit[Work], now_ns: int) -> bool:
        """Unless its request is gone, or can no longer be answered in time, or what the node reads is not here yet."""
        walk = unit.work.walk
        walk.num_ready -= 1
        if walk.stage is not Stage.RUNNING:
            return False  # another unit of this batch has ended it
        if unit.deadline_ns is not None and self._table.fail_if_late(walk, now_ns, unit.work.firing.name):
            return False
        return not (walk.pending or walk.is_blocked) or self._walks.prepare(unit)

    def _settle(
        self,
        unit: Unit[Work],
        outcome: Outcome,
        start_ns: int,
        end_ns: int,
        alone_ns: int,
        num_own: int,
        num_others: int,
    ) -> None:
        work = unit.work
        walk = work.walk
        if walk.stage is not Stage.RUNNING:
            return  # another unit of this request failed in the same step
        if outcome.result is not None:
            if self._checks_outputs:
                fault = walk.loaded.checks.check_result(work.firing.node.name, outcome.result)
                if fault is not None:
                    self._table.fail(walk, fault)
                    return
            duration_ns = end_ns - start_ns
            walk.account(unit.ready_ns, start_ns, end_ns)
            queue_us = (start_ns - unit.ready_ns) / 1e3
            walk.add_step(work.firing, queue_us, duration_ns, alone_ns, num_own, num_others)
            if has_more(unit, outcome.result):
                self._walks.go_on(unit, outcome.result, end_ns, duration_ns)
            else:
                self._walks.complete(work, outcome.result)
        elif outcome.shortage is not None:
            self._table.waiters.wait(Waiter(walk, unit, outcome.shortage))
        else:
            assert outcome.error is not None
            self._table.fail(walk, outcome.error)

    def stats(self) -> dict[str, float]:
        """Counters and gauges of this worker by name."""
        table = self._table
        num_done = sum(walk.stage is Stage.DONE for walk in table.active.values())
        values = {
            "active_walks": float(len(table.active) - num_done),
            "finished_parts": float(num_done),
            "ready_units": float(len(self._scheduler)),
            "early_messages": float(len(table.early)),
            "waiting_for_room": float(len(table.room)),
            "scopes": float(len(table.scopes)),
            "shared_memory_held_bytes": float(self._plane.num_held_bytes),
        }
        values.update(self._meters.stats(self._scheduler, self._clock.now_ns()))
        values.update(self._overruns.stats())
        for model, loaded in self._models.items():
            for cache, pool in loaded.pools.items():
                values[f"pages_free/{model}/{cache}"] = float(pool.allocator.num_free)
                values[f"pages_held/{model}/{cache}"] = float(pool.allocator.num_held)
        return values


def _rank_of(address: str) -> int:
    """Of "worker/<rank>"."""
    return int(address.rpartition("/")[2])
