"""Takes accepted requests through their walks to exactly one answer each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from mstar_rt.clock import Clock
from mstar_rt.conductor.admission import Admission
from mstar_rt.conductor.input_holds import releases
from mstar_rt.conductor.requests import CurrentWalk, RequestState
from mstar_rt.conductor.sessions import Session
from mstar_rt.conductor.workers import Workers
from mstar_rt.conductor.yields import YieldedWalks
from mstar_rt.errors import Cancelled, MstarError
from mstar_rt.message import (
    CancelRequest,
    Finished,
    Message,
    ReleaseScope,
    RequestFailed,
    ResumeWalk,
    SuspendWalk,
    WalkDone,
    WalkFailed,
    WalkYields,
)  # fmt: skip
from mstar_rt.transport import ControlEndpoint

logger = logging.getLogger(__name__)


class RunningRequests:
    """Every request that has been accepted and not answered.

    A request ends on every rank that was sent a walk of it: with ReleaseScope when it has finished, so that what it
    left becomes its session's on all ranks alike, or with CancelRequest before that, so that it never was.
    """

    def __init__(self, endpoint: ControlEndpoint, clock: Clock, workers: Workers, admission: Admission) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._workers = workers
        self._admission = admission
        self._states: dict[str, RequestState] = {}
        self._yielded = YieldedWalks()
        self._num_on: Counter[int] = Counter()
        self._num_by_end = {"finished": 0, "failed": 0, "cancelled": 0}
        self.last_walk_id = 0

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def num_on(self, rank: int) -> int:
        """Requests that need that rank."""
        return self._num_on[rank]

    def touching(self, rank: int) -> list[str]:
        return [request_id for request_id, state in self._states.items() if rank in state.itinerary.ranks]

    def waiting_first(self, request_ids: Iterable[str]) -> list[str]:
        """In the order to end them in: one that waits for its turn would be started by the end of the one before."""
        return sorted(request_ids, key=lambda request_id: self._states[request_id].walk is not None)

    # --- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, state: RequestState) -> None:
        """Start it, or let it wait for its turn in its session."""
        self._states[state.request_id] = state
        self._num_on.update(state.itinerary.ranks)
        self._hold_inputs(state)
        if state.session is None:
            self._start_next_walk(state)
            return
        state.session.requests.add(state.request_id)
        if state.itinerary.in_turn:
            state.session.turns.append(state.request_id)
        if not state.itinerary.in_turn or state.session.turns[0] == state.request_id:
            self._start_next_walk(state)

    def _hold_inputs(self, state: RequestState) -> None:
        """Note who is to get each input; the other replicas never will."""
        itinerary = state.itinerary
        inputs = {name: ref for name, ref in state.submit.inputs.items() if ref.segment is not None}
        state.unread = {name: set(itinerary.receivers.get(name, ())) for name in inputs}
        never = {name: [r for r in itinerary.readers.get(name, ()) if r not in state.unread[name]] for name in inputs}
        self._release_inputs(state, never)

    def _release_inputs(self, state: RequestState, holders: dict[str, list[int]]) -> None:
        for owner, release in releases(state.submit.inputs, holders):
            self._endpoint.send(owner, release)

    # --- walks -------------------------------------------------------------------------------------------------------

    def _start_next_walk(self, state: RequestState) -> None:
        """On all its ranks, or finish after the last one."""
        stage = state.next_stage()
        if stage is None:
            self._finish(state)
            return
        walk_id = self._new_walk_id()
        state.age = state.age or walk_id
        state.walk = CurrentWalk(stage, walk_id)
        self._yielded.add_parts(stage.plan.ranks)
        try:
            for rank in stage.plan.ranks:
                start = state.start_part(stage, rank, walk_id)
                start.sent_ns = self._clock.now_ns()
                self._endpoint.send(f"worker/{rank}", start)
                state.note_started(start, rank)
        except MstarError as error:
            self.fail(state.request_id, error.code, str(error))

    def _new_walk_id(self) -> int:
        self.last_walk_id += 1
        return self.last_walk_id

    def _running_part(self, news: WalkDone | WalkYields) -> tuple[RequestState, CurrentWalk] | None:
        """Whose part the news is of; None if its walk was suspended or has ended, or the part has already."""
        state = self._states.get(news.request_id)
        if state is None or state.walk is None:
            return None
        walk = state.walk
        is_old = news.walk_id != walk.walk_id or news.rank not in walk.running_ranks
        return None if is_old else (state, walk)

    def part_done(self, done: WalkDone) -> None:
        """One rank has completed its part; old news of a walk that was suspended or ended is ignored."""
        running = self._running_part(done)
        if running is None:
            return
        state, walk = running
        walk.done[done.rank] = done
        self._yielded.remove_parts([done.rank])
        if len(walk.done) == len(walk.stage.plan.ranks):
            parts = [walk.done[rank] for rank in walk.stage.plan.ranks]
            state.parts += [(walk.stage.walk, part) for part in parts]
            state.tally.add_walk(parts)
            state.left.note(walk.stage.plan, walk.walk_id)
            self._start_next_walk(state)
        if state.request_id in self._states:
            self._wake([done.rank])

    def part_failed(self, failed: WalkFailed) -> None:
        self.fail(failed.request_id, failed.code, failed.message)

    # --- ends --------------------------------------------------------------------------------------------------------

    def fail(self, request_id: str, code: str, message: str) -> None:
        self._break_off(request_id, "failed", RequestFailed(request_id, code, message))

    def cancel(self, request_id: str) -> None:
        """What runs is stopped before its next step."""
        answer = RequestFailed(request_id, Cancelled.code, "the request was cancelled")
        self._break_off(request_id, "cancelled", answer)

    def _finish(self, state: RequestState) -> None:
        if state.session is not None:
            state.session.left.absorb(state.left, state.itinerary.session_caches)
        self._tell(state.started, ReleaseScope(state.request_id))
        finished = Finished(
            request_id=state.request_id,
            num_emitted=state.tally.num_emitted,
            node_times=state.tally.node_times,
            loop_us=state.tally.loop_us,
            num_iterations=state.tally.num_iterations,
            total_us=(self._clock.now_ns() - state.start_ns) / 1e3,
            flags=state.tally.flags,
            ranks=sorted(state.started),
            wait_us=state.tally.wait_us,
            run_us=state.tally.run_us,
        )
        self._end(state, "finished", finished)

    def _break_off(self, request_id: str, end: str, answer: RequestFailed) -> None:
        state = self._states.get(request_id)
        if state is None:
            return
        self._tell(state.started, CancelRequest(request_id))
        self._tell(state.started, ReleaseScope(request_id))
        never = {name: sorted(ranks) for name, ranks in state.unread.items()}
        self._release_inputs(state, never)
        self._end(state, end, answer)

    def _end(self, state: RequestState, end: str, answer: Message) -> None:
        del self._states[state.request_id]
        self._num_by_end[end] += 1
        self._num_on.subtract(state.itinerary.ranks)
        if state.walk is not None:
            self._yielded.remove_parts(state.walk.running_ranks)
        self._yielded.forget(state)
        self._endpoint.send(state.submit.reply_to, answer)
        self._admission.ended(state, has_finished=end == "finished")
        if state.session is not None:
            self._leave_session(state, state.session)
        self._wake(state.started)

    def _leave_session(self, state: RequestState, session: Session) -> None:
        """And let the next one have its turn."""
        session.requests.discard(state.request_id)
        had_turn = bool(session.turns) and session.turns[0] == state.request_id
        if state.itinerary.in_turn:
            session.turns.remove(state.request_id)
        if had_turn and session.turns:
            self._start_next_walk(self._states[session.turns[0]])

    def _tell(self, ranks: Iterable[int], message: Message) -> None:
        for rank in sorted(ranks):
            if self._workers.is_ready(rank):
                self._endpoint.send(f"worker/{rank}", message)

    # --- walks that give way -----------------------------------------------------------------------------------------

    def part_yields(self, yields: WalkYields) -> None:
        """Suspend the walk on all its ranks until pages may have come back."""
        running = self._running_part(yields)
        if running is None:
            return
        state, walk = running
        self._yielded.remove_parts(walk.running_ranks)
        walk.yielded_on = yields.rank
        walk.done.clear()
        self._yielded.suspend(state)
        self._tell(walk.stage.plan.ranks, SuspendWalk(state.request_id, walk.walk_id))
        self._wake([])

    def pages_returned(self, ranks: Iterable[int]) -> None:
        """A session ended that had pages there."""
        self._wake(ranks)

    def _wake(self, ranks: Iterable[int]) -> None:
        if not self._yielded:
            return
        for rank in sorted(ranks):
            state = self._yielded.take_for(rank)
            if state is not None:
                self._resume(state)
        while (state := self._yielded.take_stuck()) is not None:
            self._resume(state)

    def _resume(self, state: RequestState) -> None:
        """From the beginning, under a new number."""
        assert state.walk is not None
        state.walk.walk_id = self._new_walk_id()
        state.walk.yielded_on = None
        self._yielded.add_parts(state.walk.running_ranks)
        self._tell(state.walk.stage.plan.ranks, ResumeWalk(state.request_id, state.walk.walk_id))

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""
        values = {f"requests_{end}_total": float(count) for end, count in self._num_by_end.items()}
        values["requests_running"] = float(len(self._states))
        values["requests_waiting"] = float(sum(state.walk is None for state in self._states.values()))
        values["walks_suspended"] = float(len(self._yielded))
        values["walks_total"] = float(self.last_walk_id)
        return values
