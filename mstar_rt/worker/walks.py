"""The parts of walks that are on this worker, from their start until they are done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mstar_rt.cache.moving import apply_deltas
from mstar_rt.clock import Clock
from mstar_rt.errors import Internal, MstarError, PagesExhausted, SharedMemoryExhausted, Unavailable
from mstar_rt.message import Fetched, FetchScope, SoundMade, StartWalk, Tokens, WalkDone
from mstar_rt.model import NodeResult
from mstar_rt.program import Emission, Firing, Progress, WalkRun
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk, Stage, Work, request_kind, request_seed
from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.early import release_tensors
from mstar_rt.worker.fetches import Fetches
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.page_waiters import Waiter
from mstar_rt.worker.playback import Player
from mstar_rt.worker.remaining_time import RemainingTime
from mstar_rt.worker.room import Delivery
from mstar_rt.worker.router import Router
from mstar_rt.worker.tensors import one_tensor, receive_tensors
from mstar_rt.worker.unit import SchedulingPolicy, Unit
from mstar_rt.worker.units import Units, ready_after_part
from mstar_rt.worker.walk_table import WalkTable

logger = logging.getLogger(__name__)


class Walks:
    """Takes the parts of walks on this worker from their start to the end of what they have to do."""

    def __init__(
        self,
        table: WalkTable,
        models: Mapping[str, LoadedModel],
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        clock: Clock,
        rank: int,
        device: str,
        scheduler: SchedulingPolicy[Work],
        costs: CostModel,
        checks_outputs: bool,
    ) -> None:
        self._table = table
        self._models = models
        self._endpoint = endpoint
        self._plane = plane
        self._now_ns = clock.now_ns
        self._rank = rank
        self._device = device
        self._scheduler = scheduler
        self._remaining = RemainingTime()
        self._units = Units(clock.now_ns, costs)
        self._router = Router(endpoint, plane, device, checks_outputs)
        self._fetches = Fetches(models, endpoint, plane, device, rank, table.scopes, table.room)
        self.step_ended_ns = 0

    # --- beginning ---------------------------------------------------------------------------------------------------

    def start(self, start: StartWalk) -> None:
        previous = self._table.active.get(start.request_id)
        if previous is not None:
            self._table.settle(previous)
        self._table.last_walk_id = max(self._table.last_walk_id, start.walk_id)
        self._table.ages[start.request_id] = start.age
        try:
            walk = self._make(start)
        except MstarError as error:
            self._table.refuse(start, error)
        except BaseException as error:
            logger.error("cannot start walk %s of request %s", start.walk, start.request_id, exc_info=error)
            self._table.refuse(start, Internal(f"walk {start.walk!r} could not start ({type(error).__name__})"))
        else:
            self._table.active[start.request_id] = walk
            self._guard(walk, lambda: self._fetch_and_begin(walk))

    def begin_again(self, walk: ActiveWalk) -> None:
        """It has no progress, and owes its beginning to nobody any more."""
        self._guard(walk, lambda: self._begin(walk))

    def _make(self, start: StartWalk) -> ActiveWalk:
        received = receive_tensors(self._plane, list(start.inputs.values()), self._device)
        given = dict(zip(start.inputs, received, strict=True))
        loaded = self._models[start.model]
        part = loaded.part(start.walk, start.node_ranks, self._rank)
        self._table.scopes.keep_inputs(start.request_id, {name: given[name] for name in start.keep if name in given})
        memory = loaded.memory.begin(start.request_id, start.scope, part.caches)
        pace = self._remaining.pace((id(part), *request_kind(start)))
        player = None
        if start.playback is not None and start.criticality == "generation":
            player = Player(start.playback, start.sent_ns or self._now_ns())
        return ActiveWalk(start, loaded, part, memory, request_seed(start), start.walk_id, given, pace, player)

    def _fetch_and_begin(self, walk: ActiveWalk) -> None:
        if walk.start.fetches:
            self._fetches.ask(walk)
        if walk.asked:
            self._table.stalled.add(walk)
        else:
            self._begin(walk)

    def _begin(self, walk: ActiveWalk) -> None:
        """From the inputs; all that is fetched is here."""
        try:
            self._fetches.take_in(walk)
        except PagesExhausted as shortage:
            walk.stage = Stage.WAITING
            self._table.stalled.add(walk)
            self._table.waiters.wait(Waiter(walk, None, shortage))
            return
        start, program = walk.start, walk.part.program
        inputs = self._table.scopes.known(start.request_id, start.scope)
        inputs.update(walk.given)
        if not program.input_names <= inputs.keys():
            # In the order of the program, so that of several faults the same one is told each time.
            for name in [name for name, _ in program.inputs if name not in inputs]:
                walk.loaded.absent.check(start.walk, name)
                inputs[name] = None
        if len(inputs) > len(program.input_names):
            inputs = {name: inputs[name] for name in program.input_names}
        times: dict[str, Any] = {name: start.params[name] for name in program.params if name in start.params}
        walk.run = WalkRun(program, times)
        walk.stage = Stage.RUNNING
        self._table.stalled.discard(walk)
        self._add_ready(walk, walk.run.start(inputs), self._ready_since_ns(walk))
        if walk.spans_ranks:
            self._receive_early(walk)

    def _ready_since_ns(self, walk: ActiveWalk) -> int | None:
        """When its first nodes could have run: a walk that came while a step ran waited for that step, in the inbox."""
        sent_ns = walk.start.sent_ns
        came_during_step = 0 < sent_ns < self.step_ended_ns
        return sent_ns if came_during_step and not walk.start.fetches and not walk.accounted_ns else None

    def _receive_early(self, walk: ActiveWalk) -> None:
        messages = self._table.early.take(walk.walk_id)
        try:
            while messages and walk.stage is Stage.RUNNING:
                self._receive(walk, *messages.pop(0))
        finally:
            for _, message in messages:
                release_tensors(self._plane, message.tensors)

    # --- going on ----------------------------------------------------------------------------------------------------

    def complete(self, work: Work, result: NodeResult) -> None:
        """Take in what a firing gave; `flush` follows."""
        walk, firing = work.walk, work.firing
        assert walk.run is not None
        walk.begun = True
        if result.flags:
            walk.note_flags(result.flags)
        try:
            self._advance(walk, walk.run.complete(firing, result.outputs, result.leave), firing)
        except BaseException as error:
            self._table.fail_after(walk, firing, error)

    def go_on(self, unit: Unit[Work], result: NodeResult, now_ns: int, duration_ns: int) -> None:
        """A part of a firing is done, in so much time, and another one is ready."""
        walk = unit.work.walk
        walk.begun = True
        if result.flags:
            walk.note_flags(result.flags)
        ready_after_part(unit, now_ns, duration_ns)
        if walk.player is not None:
            self._units.judge_playback(walk.player, unit)
        self.put_back(unit)

    def put_back(self, unit: Unit[Work]) -> None:
        """A unit that was taken for a step is ready again."""
        self._scheduler.add_one(unit)
        unit.work.walk.num_ready += 1

    def flush(self, walk: ActiveWalk, after: Firing | None) -> None:
        """Send what the walk's last step, or several of them, brought about."""
        if (walk.sends or walk.emissions) and walk.stage is Stage.RUNNING and not walk.is_blocked:
            room = self._table.room
            try:
                if len(room):
                    with room.behind_others(walk):
                        self._router.flush(walk)
                else:
                    self._router.flush(walk)
            except SharedMemoryExhausted as shortage:
                self._block(walk, after, shortage)
            except BaseException as error:
                self._table.fail_after(walk, after, error)

    def _block(self, walk: ActiveWalk, after: Firing | None, shortage: SharedMemoryExhausted) -> None:
        """The walk waits for room, and makes nothing more that would need some."""

        def send() -> None:
            try:
                self._router.flush(walk)
            except SharedMemoryExhausted:
                raise
            except BaseException as error:
                self._table.fail_after(walk, after, error)
            else:
                self._unblock(walk, after)

        walk.is_blocked = True
        self._table.stalled.add(walk)
        self._table.room.wait(Delivery(send, lambda error: self._table.fail(walk, error), walk, shortage))

    def _unblock(self, walk: ActiveWalk, after: Firing | None) -> None:
        walk.is_blocked = False
        self._table.stalled.discard(walk)
        units, walk.held_back = walk.held_back, []
        for unit in units:
            self.put_back(unit)
        if walk.is_complete:
            self._finish(walk, after)

    def receive(self, sender: int, message: Tokens) -> None:
        """Tokens of a walk that runs, of one that has not begun yet, or of one that is over."""
        walk = self._table.active.get(message.request_id)
        if walk is not None and walk.walk_id == message.walk_id and walk.stage in (Stage.RUNNING, Stage.WAITING):
            if walk.stage is Stage.WAITING:
                self._table.early.hold(sender, message)
                return
            self._guard(walk, lambda: self._receive(walk, sender, message))
        elif message.walk_id > self._table.last_walk_id:
            self._table.early.hold(sender, message)
        else:
            release_tensors(self._plane, message.tensors)

    def prepare(self, unit: Unit[Work]) -> bool:
        """Take in the sequences that came with tokens, before a node reads them; False if the unit must not run now.

        A walk that fails over it takes nobody with it.
        """
        walk, cache = unit.work.walk, unit.work.firing.node.cache
        if walk.is_blocked:
            walk.held_back.append(unit)
            return False
        if cache is None or cache not in walk.pending:
            return True
        try:
            pending = walk.pending[cache]
            while pending:
                sender, deltas = pending[0]
                apply_deltas(walk.memory.store(cache), sender, deltas)
                pending.pop(0)
            del walk.pending[cache]
        except PagesExhausted as shortage:
            self._table.waiters.wait(Waiter(walk, unit, shortage))
            return False
        except BaseException as error:
            self._table.fail_after(walk, unit.work.firing, error)
            return False
        return True

    def _receive(self, walk: ActiveWalk, sender: int, message: Tokens) -> None:
        walk.begun = True
        for progress in self._router.receive(walk, sender, message):
            self._advance(walk, progress, None)
        self.flush(walk, None)

    def _advance(self, walk: ActiveWalk, progress: Progress, after: Firing | None) -> None:
        if progress.sends:
            walk.sends += progress.sends
        if progress.emitted:
            walk.emissions += progress.emitted
            if walk.player is not None:
                self._note_sound(walk, walk.player, progress.emitted)
        if progress.ready:
            self._add_ready(walk, progress.ready)
        if progress.finished:
            self._finish(walk, after)

    def _note_sound(self, walk: ActiveWalk, player: Player, emitted: Sequence[Emission]) -> None:
        """And tell the other ranks. What a walk that began again makes once more has been heard."""
        for emission in emitted:
            if emission.name == player.output and (emission.name, emission.iteration) not in walk.emitted:
                num_samples = one_tensor(emission.value).numel()
                dry_ns = player.sound(num_samples, self._now_ns(), walk.ran_ns)
                for rank in walk.part.ranks:
                    if rank != self._rank:
                        self._endpoint.send(f"worker/{rank}", SoundMade(walk.request_id, walk.walk_id, dry_ns))

    def note_sound(self, message: SoundMade) -> None:
        """Another rank of the walk has made it."""
        walk = self._table.active.get(message.request_id)
        if walk is not None and walk.walk_id == message.walk_id and walk.player is not None:
            walk.player.note(message.dry_ns, walk.ran_ns)

    def _add_ready(self, walk: ActiveWalk, firings: Sequence[Firing], since_ns: int | None = None) -> None:
        """`since_ns`: since when they could run, if that is not now."""
        ready_ns = self._now_ns() if since_ns is None else since_ns
        for firing in firings:
            self._scheduler.add_one(self._units.make(walk, firing, ready_ns))
            walk.num_ready += 1

    def _finish(self, walk: ActiveWalk, after: Firing | None) -> None:
        """This rank's part is complete. Other ranks may have to run theirs again, and ours with it, until the conductor
        says otherwise."""
        self.flush(walk, after)
        if walk.stage is not Stage.RUNNING:
            return
        walk.is_complete = True
        if walk.is_blocked:
            return
        assert walk.run is not None
        done = WalkDone(
            request_id=walk.request_id,
            walk_id=walk.walk_id,
            rank=self._rank,
            num_emitted=len(walk.emitted),
            node_times=walk.node_times(),
            loop_us=walk.loop_us(),
            num_iterations=walk.run.num_iterations,
            flags=walk.flags,
            wait_us=walk.wait_ns / 1e3,
            run_us=walk.run_ns / 1e3,
        )
        walk.left, walk.run = walk.run.persisted, None
        walk.stage = Stage.DONE
        self._table.finished.setdefault(walk.request_id, []).append(walk.walk_id)
        if walk.spans_ranks:
            walk.memory.release_walk_stores()
        else:
            self._table.settle(walk)
        self._table.pages_return(has_ended=True)
        self._endpoint.send("conductor", done)
        walk.pace.finished(walk.marks, walk.ran_ns, walk.sure_ns, walk.start.is_warm_up)
        deadline_ns = walk.start.deadline_ns
        if deadline_ns is not None and not walk.start.anytime and self._now_ns() > deadline_ns:
            self._table.meters.missed(walk.start.criticality)

    def _guard(self, walk: ActiveWalk, step: Callable[[], None]) -> None:
        """A model's batch_key, or a value that cannot be sent, must not take the other requests with it."""
        try:
            step()
        except BaseException as error:
            self._table.fail_after(walk, None, error)

    # --- what walks leave for others ----------------------------------------------------------------------------------

    def give(self, message: FetchScope) -> None:
        """Answer what another rank asks for. The walks that it names are over, and their requests if they are others,
        even if the conductor's word of it is still under way."""
        for request_id, walk_ids in list(self._table.finished.items()):
            if not set(walk_ids).isdisjoint(message.left_by):
                walk = self._table.active.get(request_id)
                if walk is not None and walk.stage is Stage.DONE:
                    self._table.settle(walk)
                if request_id != message.request_id:
                    self._table.end_request(request_id, keep=True)
        self._fetches.answer(message)

    def take(self, sender: int, message: Fetched) -> None:
        """What the walk waited for."""
        walk = self._table.active.get(message.request_id)
        if walk is None or walk.start.walk_id != message.walk_id or sender not in walk.asked:
            release_tensors(self._plane, message.tensors)
            return
        self._guard(walk, lambda: self._take(walk, sender, message))

    def _take(self, walk: ActiveWalk, sender: int, message: Fetched) -> None:
        missing = self._fetches.accept(walk, sender, message)
        if missing:
            raise Unavailable(
                f"rank {sender} has lost {', '.join(map(repr, missing))}, which walk {walk.start.walk!r} reads; "
                "start the session anew"
            )
        if not walk.asked and walk.stage is Stage.WAITING:
            self._begin(walk)
