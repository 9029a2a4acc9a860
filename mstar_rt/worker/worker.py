"""The loop of one rank: take messages, form a batch, run it, route what comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mstar_rt.clock import Clock
from mstar_rt.engine import Outcome, run_isolating_failures
from mstar_rt.errors import (
    DeadlineExceeded,
    Internal,
    MstarError,
    ResourceExhausted,
)
from mstar_rt.message import (
    AskStats,
    CancelRequest,
    Drain,
    Emitted,
    Message,
    PeerGone,
    Release,
    ReleaseScope,
    Shutdown,
    StartWalk,
    Stats,
    WalkDone,
    WalkFailed,
)  # fmt: skip
from mstar_rt.model import NodeCall
from mstar_rt.program import Emission, Firing, Progress, WalkRun
from mstar_rt.trace import TraceRing
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk, Scopes
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.page_waiters import PageWaiters
from mstar_rt.worker.scheduler import Scheduler, Unit
from mstar_rt.worker.tensors import receive_tensor, send_tensor
from mstar_rt.worker.walk_inputs import absent_input

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0


class Worker:
    """One rank. Single-threaded: between two steps it reads its inbox, so a cancel waits for one step at most."""

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        clock: Clock,
        device: str = "cpu",
        max_batch: int = 16,
    ) -> None:
        self.trace = TraceRing()
        self._models = models
        self._endpoint = endpoint
        self._plane = plane
        self._clock = clock
        self._device = device
        self._scheduler: Scheduler[Firing] = Scheduler(max_batch)
        self._active: dict[str, ActiveWalk] = {}
        self._scopes = Scopes()
        self._page_waiters = PageWaiters()
        self._num_walks = 0
        self._num_units = 0
        self._num_steps = 0
        self._num_batched = 0
        self.stopped = False

    def run(self) -> None:
        """Serve until Shutdown."""
        while not self.stopped:
            self.turn(IDLE_WAIT_S)

    def turn(self, idle_wait_s: float) -> None:
        """Read the inbox, waiting for it only if there is nothing to do; then run one step."""
        is_idle = not len(self._scheduler) and not self._page_waiters
        for envelope in self._endpoint.receive(idle_wait_s if is_idle else 0.0):
            self._handle(envelope.message)
        if self.stopped:
            return
        self._fail_late_waiters()
        batch = self._scheduler.next_batch(self._clock.now_ns())
        if batch:
            self._run_step(batch)
        elif self._page_waiters:
            self._break_page_deadlock()

    # --- inbox -------------------------------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        match message:
            case StartWalk():
                self._start(message)
            case CancelRequest():
                self._end(message.request_id)
            case ReleaseScope():
                self._scopes.release(message.scope)
            case Release():
                self._plane.on_release(message)
            case PeerGone():
                self._plane.forget_peer(message.address)
            case AskStats():
                self._endpoint.send(message.reply_to, Stats(self._endpoint.address, message.ask_id, self.stats()))
            case Drain() | Shutdown():
                self.stopped = isinstance(message, Shutdown)
            case _:
                logger.error("%s got an unexpected %s", self._endpoint.address, type(message).__name__)

    def _start(self, start: StartWalk) -> None:
        try:
            given = self._receive_inputs(start)
            loaded = self._models[start.model]
            program = loaded.programs[start.walk]
            if start.keep_inputs:
                self._scopes.persist(start.request_id, given)
            known = {**self._scopes.get(start.scope), **self._scopes.get(start.request_id), **given}
            inputs = {
                name: known[name] if name in known else absent_input(loaded, start, name) for name, _ in program.inputs
            }
            times = {name: start.params[name] for name in program.params if name in start.params}
            run = WalkRun(program, times)  # type: ignore[arg-type]  # it checks that they are integers
            self._num_walks += 1
            active = ActiveWalk(start, inputs, times, run, loaded.new_sequences(), self._num_walks)  # type: ignore[arg-type]
            self._active[start.request_id] = active
            self._add_ready(active, run.start(inputs))
        except MstarError as error:
            self._fail(start, error)
        except Exception as error:
            logger.error("cannot start walk %s of request %s", start.walk, start.request_id, exc_info=error)
            self._fail(start, Internal(f"walk {start.walk!r} could not start ({type(error).__name__})"))

    def _receive_inputs(self, start: StartWalk) -> dict[str, Any]:
        """All of them are read and let go, even if one cannot be read."""
        received: dict[str, Any] = {}
        failure: MstarError | None = None
        for name, ref in start.inputs.items():
            try:
                received[name] = receive_tensor(self._plane, ref, self._device)
            except MstarError as error:
                failure = error
        if failure is not None:
            raise failure
        return received

    # --- steps -------------------------------------------------------------------------------------------------------

    def _add_ready(self, active: ActiveWalk, firings: Sequence[Firing]) -> None:
        start = active.start
        now_ns = self._clock.now_ns()
        units = []
        for firing in firings:
            self._num_units += 1
            engine = self._models[start.model].engines[firing.node.name]
            units.append(
                Unit(
                    request_id=start.request_id,
                    engine_id=(start.model, firing.node.name),
                    batch_key=engine.batch_key(self._call(active, firing)),
                    criticality=start.criticality,
                    order=firing.order,
                    arrival=self._num_units,
                    ready_ns=now_ns,
                    work=firing,
                    deadline_ns=start.deadline_ns,
                )
            )
        self._scheduler.add(units)

    def _call(self, active: ActiveWalk, firing: Firing) -> NodeCall:
        start = active.start
        return NodeCall(
            request_id=start.request_id,
            session_id=start.scope,
            walk=start.walk,
            iteration=firing.iteration,
            inputs=firing.inputs,
            params=start.params,
            now_ns=self._clock.now_ns,
            deadline_ns=start.deadline_ns,
            sequences=active.sequences.get(firing.node.cache) if firing.node.cache else None,
        )

    def _run_step(self, batch: list[Unit[Firing]]) -> None:
        # One reading of the clock: of two units of one request, the second must not end what the first goes on with.
        now_ns = self._clock.now_ns()
        units = [unit for unit in batch if not self._drop_late(unit, now_ns)]
        if not units:
            return
        model, node = units[0].engine_id
        calls = [self._call(self._active[unit.request_id], unit.work) for unit in units]
        start_ns = self._clock.now_ns()
        outcomes = run_isolating_failures(self._models[model].engines[node], calls)
        end_ns = self._clock.now_ns()
        self._num_steps += 1
        self._num_batched += len(units)
        self.trace.record(node, self._endpoint.address, start_ns, end_ns, f"batch {len(units)}")
        for unit, outcome in zip(units, outcomes, strict=True):
            self._settle(unit, outcome, start_ns, end_ns, len(units))

    def _settle(self, unit: Unit[Firing], outcome: Outcome, start_ns: int, end_ns: int, batch_size: int) -> None:
        active = self._active.get(unit.request_id)
        if active is None:
            return  # another unit of this request failed in the same step
        if outcome.shortage is not None:
            self._page_waiters.wait(unit, outcome.shortage)
            return
        if outcome.error is not None:
            self._fail(active.start, outcome.error)
            return
        assert outcome.result is not None
        firing = unit.work
        program = active.run.program
        loops = tuple(program.loops[index].name for index in program.nodes[firing.node_index].loops)
        active.add_step(firing, (start_ns - unit.ready_ns) / 1e3, (end_ns - start_ns) / 1e3, batch_size, loops)
        active.note_flags(outcome.result.flags)
        result = outcome.result
        self._continue(active, lambda: active.run.complete(firing, result.outputs, result.leave), firing.name)

    def _continue(self, active: ActiveWalk, step: Callable[[], Progress], after: str = "the start") -> None:
        """Route what a step of a walk brings about.

        A model's batch_key, or a value that cannot be sent, must not take the other requests with it.
        """
        try:
            self._advance(active, step())
        except MstarError as error:
            self._fail(active.start, error)
        except Exception as error:
            logger.error("request %s cannot go on after %s", active.request_id, after, exc_info=error)
            self._fail(active.start, Internal(f"what follows node {after!r} failed ({type(error).__name__})"))

    def _advance(self, active: ActiveWalk, progress: Progress) -> None:
        self._emit(active, progress.emitted)
        if progress.finished:
            self._finish(active)
        else:
            self._add_ready(active, progress.ready)

    def _emit(self, active: ActiveWalk, emissions: Sequence[Emission]) -> None:
        start = active.start
        for emission in emissions:
            key = (emission.name, emission.iteration)
            if key in active.emitted:
                continue  # before the walk started again
            ref = send_tensor(self._plane, emission.value, start.reply_to)
            record = Emitted(start.request_id, start.walk, len(active.emitted), emission.name, emission.iteration, ref)
            self._endpoint.send(start.reply_to, record)
            active.emitted.add(key)

    # --- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, active: ActiveWalk) -> None:
        start = active.start
        self._scopes.persist(start.scope, active.run.persisted)
        done = WalkDone(
            request_id=start.request_id,
            walk=start.walk,
            num_emitted=len(active.emitted),
            node_times=active.node_times,
            loop_us=active.loop_us,
            num_iterations=active.run.num_iterations,
            flags=active.flags,
        )
        self._end(start.request_id)
        self._endpoint.send("conductor", done)

    def _fail(self, start: StartWalk, error: MstarError) -> None:
        self._end(start.request_id)
        self._endpoint.send("conductor", WalkFailed(start.request_id, start.walk, error.code, str(error)))

    def _end(self, request_id: str) -> None:
        """Forget a walk, whatever ended it: its pages are free for those that wait for them."""
        active = self._active.pop(request_id, None)
        if active is None:
            return
        active.release()
        self._scheduler.remove_request(request_id)
        self._page_waiters.forget(request_id)
        self._scheduler.add(self._page_waiters.take_waiting())
        resumed = self._page_waiters.take_oldest_suspended()
        if resumed is not None:
            self._continue(resumed, resumed.start_again)

    def _drop_late(self, unit: Unit[Firing], now_ns: int) -> bool:
        """True if the unit need not run: its request is gone, or can no longer be answered in time."""
        active = self._active.get(unit.request_id)
        if active is None:
            return True
        start = active.start
        if start.deadline_ns is None or now_ns < start.deadline_ns or (start.anytime and active.node_times):
            return False
        late_ms = (now_ns - start.deadline_ns) / 1e6
        self._fail(
            start,
            DeadlineExceeded(f"the deadline passed {late_ms:.1f} ms before node {unit.work.name!r} could run"),
        )
        return True

    def _break_page_deadlock(self) -> None:
        """Every walk waits for pages that the others hold: the youngest gives its own back and starts again later.

        A walk that finds no pages although it is alone cannot be served.
        """
        running = [walk for walk in self._active.values() if not self._page_waiters.is_suspended(walk)]
        if len(running) > 1:
            youngest = max(running, key=lambda walk: walk.arrival)
            youngest.release()
            self._page_waiters.suspend(youngest)
            self._scheduler.add(self._page_waiters.take_waiting())
            return
        unit, shortage = self._page_waiters.last_shortage()
        self._fail(
            self._active[unit.request_id].start,
            ResourceExhausted(
                f"node {unit.work.name!r} does not fit into this worker's pages, even alone: {shortage}; "
                "ask for fewer samples or a shorter horizon, or raise workers.kv_memory_mb"
            ),
        )

    def _fail_late_waiters(self) -> None:
        """What waits for pages past its deadline need not have them any more."""
        now_ns = self._clock.now_ns()
        for request_id in list(self._page_waiters.request_ids()):
            walk = self._active.get(request_id)
            if walk is not None and walk.start.deadline_ns is not None and now_ns >= walk.start.deadline_ns:
                self._fail(walk.start, DeadlineExceeded("the deadline passed while the request waited for pages"))

    def stats(self) -> dict[str, float]:
        """Counters and gauges of this worker by name."""
        values = {
            "active_walks": float(len(self._active)),
            "ready_units": float(len(self._scheduler)),
            "scopes": float(len(self._scopes)),
            "steps_total": float(self._num_steps),
            "units_total": float(self._num_batched),
            "shared_memory_held_bytes": float(self._plane.num_held_bytes),
        }
        for model, loaded in self._models.items():
            for cache, pool in loaded.pools.items():
                values[f"pages_free/{model}/{cache}"] = float(pool.allocator.num_free)
                values[f"pages_held/{model}/{cache}"] = float(pool.allocator.num_held)
        return values
