"""The worker's loop: take in messages, form a batch, run it, hand on what comes out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from mstar_rt.clock import Clock
from mstar_rt.engine import Outcome, run_isolating_failures
from mstar_rt.message import (
    Admitted,
    AskStats,
    CancelRequest,
    Drain,
    Fetched,
    FetchScope,
    PeerGone,
    Release,
    ReleaseScope,
    ResumeWalk,
    Shutdown,
    StartWalk,
    Stats,
    SuspendWalk,
    Tokens,
)  # fmt: skip
from mstar_rt.trace import TraceRing
from mstar_rt.transport import ControlEndpoint, Envelope, TensorPlane
from mstar_rt.worker.active import Stage, Work
from mstar_rt.worker.heartbeat import HeartbeatThread
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.page_pressure import PagePressure
from mstar_rt.worker.page_waiters import Waiter
from mstar_rt.worker.scheduler import Scheduler, Unit
from mstar_rt.worker.walk_table import WalkTable
from mstar_rt.worker.walks import Walks

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0


class Worker:
    """One rank. Single-threaded: between two steps it reads its inbox, so a cancel waits for one step at most.

    Args:    endpoint: of the address "worker/<rank>". check_outputs: see config.WorkerConfig. heartbeat: is told what
             runs; starting and stopping it is up to the caller.
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
        self._scheduler: Scheduler[Work] = Scheduler(max_batch)
        self._table = WalkTable(models, endpoint, plane, rank, self._scheduler)
        self._walks = Walks(self._table, models, endpoint, plane, clock, rank, device, self._scheduler, check_outputs)
        self._pressure = PagePressure(self._table, self._walks, self._scheduler, endpoint, rank)
        self._is_stuck = False
        self._num_steps = 0
        self._num_batched = 0

    def run(self) -> None:
        """Serve until Shutdown."""
        while not self.stopped:
            self.turn(IDLE_WAIT_S)

    def turn(self, idle_wait_s: float) -> None:
        """Read the inbox, waiting for it only if there is nothing to do; then run one step."""
        table = self._table
        if not len(self._scheduler):
            self._plane.flush()
        for envelope in self._endpoint.receive(self._wait_s(idle_wait_s)):
            self._is_stuck = False
            self._handle(envelope)
        if self.stopped:
            return
        now_ns = self._clock.now_ns()
        for walk in list(table.waiting()):
            table.fail_if_late(walk, now_ns, "the request got the pages, or its turn, that it waited for")
        if table.pages_came:
            self._pressure.try_again()
        batch = self._scheduler.next_batch(now_ns)
        if batch:
            self._is_stuck = False
            self._run_step(batch, now_ns)
        elif table.waiters.any_waits:
            self._is_stuck = not self._pressure.relieve()

    def _wait_s(self, idle_wait_s: float) -> float:
        """How long to wait for messages."""
        table = self._table
        if len(self._scheduler) or table.pages_came or (table.waiters.any_waits and not self._is_stuck):
            return 0.0
        deadlines_ns = [walk.start.deadline_ns for walk in table.waiting() if walk.start.deadline_ns is not None]
        if not deadlines_ns:
            return idle_wait_s
        return min(idle_wait_s, max(0.0, (min(deadlines_ns) - self._clock.now_ns()) / 1e9))

    # --- inbox -------------------------------------------------------------------------------------------------------

    def _handle(self, envelope: Envelope) -> None:
        walks, table, message = self._walks, self._table, envelope.message
        match message:
            case Tokens():
                walks.receive(_rank_of(envelope.sender), message)
            case StartWalk():
                walks.start(message)
            case Release():
                self._plane.on_release(message)
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
            case AskStats():
                self._endpoint.send(message.reply_to, Stats(self._endpoint.address, message.ask_id, self.stats()))
            case Drain() | Shutdown():
                self.stopped = isinstance(message, Shutdown)
            case _:
                logger.error("%s got an unexpected %s", self._endpoint.address, type(message).__name__)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _run_step(self, batch: list[Unit[Work]], now_ns: int) -> None:
        units = [unit for unit in batch if self._may_run(unit, now_ns)]
        if not units:
            return
        node = units[0].engine_id[1]
        heartbeat = self._heartbeat
        if heartbeat is not None:
            heartbeat.step = (now_ns, node)
        start_ns = self._clock.now_ns()
        outcomes = run_isolating_failures(units[0].work.engine, [unit.work.call for unit in units])
        end_ns = self._clock.now_ns()
        if heartbeat is not None:
            heartbeat.step = (0, "")
        self._num_steps += 1
        self._num_batched += len(units)
        self.trace.record(node, self._endpoint.address, start_ns, end_ns, len(units))
        if len(units) == 1:
            self._settle(units[0], outcomes[0], start_ns, end_ns, 0)
        else:
            own = Counter([unit.request_id for unit in units])
            for unit, outcome in zip(units, outcomes, strict=True):
                self._settle(unit, outcome, start_ns, end_ns, len(units) - own[unit.request_id])
        for unit in units:
            self._walks.flush(unit.work.walk, unit.work.firing)

    def _may_run(self, unit: Unit[Work], now_ns: int) -> bool:
        """Unless its request is gone, or can no longer be answered in time, or what the node reads is not here yet."""
        walk = unit.work.walk
        walk.num_ready -= 1
        if walk.stage is not Stage.RUNNING:
            return False  # another unit of this batch has ended it
        if unit.deadline_ns is not None and self._table.fail_if_late(
            walk, now_ns, f"node {unit.work.firing.name!r} could run"
        ):
            return False
        return not walk.pending or self._walks.prepare(unit)

    def _settle(self, unit: Unit[Work], outcome: Outcome, start_ns: int, end_ns: int, num_others: int) -> None:
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
            walk.add_step(
                work.firing.node_index, (start_ns - unit.ready_ns) / 1e3, (end_ns - start_ns) / 1e3, num_others
            )
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
            "scopes": float(len(table.scopes)),
            "steps_total": float(self._num_steps),
            "units_total": float(self._num_batched),
            "shared_memory_held_bytes": float(self._plane.num_held_bytes),
        }
        for model, loaded in self._models.items():
            for cache, pool in loaded.pools.items():
                values[f"pages_free/{model}/{cache}"] = float(pool.allocator.num_free)
                values[f"pages_held/{model}/{cache}"] = float(pool.allocator.num_held)
        return values


def _rank_of(address: str) -> int:
    """Of "worker/<rank>"."""
    return int(address.rpartition("/")[2])
