"""The walks that are on this worker, and how they end."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mstar_rt.errors import DeadlineExceeded, Internal, MstarError, sentence
from mstar_rt.message import StartWalk, WalkFailed
from mstar_rt.program import Firing
from mstar_rt.transport import ControlEndpoint, TensorPlane
from mstar_rt.worker.active import ActiveWalk, Stage, Work
from mstar_rt.worker.early import EarlyTokens
from mstar_rt.worker.loaded import LoadedModel
from mstar_rt.worker.meters import HOPELESS, LATE, STALLED, Meters
from mstar_rt.worker.page_waiters import PageWaiters
from mstar_rt.worker.room import Room
from mstar_rt.worker.scopes import Scopes
from mstar_rt.worker.unit import SchedulingPolicy, Unit

logger = logging.getLogger(__name__)


class WalkTable:
    """At most one walk of a request at a time. Whatever ends a walk frees its pages, tokens and units at once.

    `stalled` are those that wait for something else than a unit of theirs: what they fetch, pages to begin, their turn.
    `finished` are the walks whose part is complete here, by request, until the request has ended. `pages_came` says
    that those who wait should try again, `num_to_resume` how many suspended walks may begin. Walks up to `last_walk_id`
    have begun here, or never will. `ages` are those of requests that have not ended, `refused` those of them whose end
    the conductor was asked for.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        endpoint: ControlEndpoint,
        plane: TensorPlane,
        rank: int,
        scheduler: SchedulingPolicy[Work],
        meters: Meters,
        room: Room,
    ) -> None:
        self.active: dict[str, ActiveWalk] = {}
        self.finished: dict[str, list[int]] = {}
        self.ages: dict[str, int] = {}
        self.refused: set[str] = set()
        self.waiters = PageWaiters()
        self.scopes = Scopes()
        self.early = EarlyTokens(plane)
        self.stalled: set[ActiveWalk] = set()
        self.last_walk_id = 0
        self.pages_came = False
        self.num_to_resume = 0
        self._models = models
        self._endpoint = endpoint
        self._rank = rank
        self._scheduler = scheduler
        self.meters = meters
        self.room = room

    def admit(self, last_walk_id: int) -> None:
        """Walks up to this one were meant for an earlier life of this worker."""
        self.last_walk_id = max(self.last_walk_id, last_walk_id)
        self.early.drop_through(last_walk_id)

    def waiting(self) -> set[ActiveWalk]:
        """Those that no unit will run before something else happens."""
        return self.stalled.union(self.waiters.walks()) if len(self.waiters) else self.stalled

    def settle(self, walk: ActiveWalk) -> None:
        """The walk is over on all ranks: what it leaves is there for the walks that follow."""
        if walk.stage is not Stage.DONE:
            logger.error("walk %d of request %s is over before its end", walk.walk_id, walk.request_id)
            self.end(walk)
            return
        walk.memory.commit()
        self.scopes.leave(walk.request_id, walk.start.scope, walk.left)
        walk.stage = Stage.ENDED
        del self.active[walk.request_id]

    def fail(self, walk: ActiveWalk, error: MstarError) -> None:
        """Here at once; the conductor ends the other parts."""
        self.end(walk)
        self.end_request(walk.request_id, keep=False)
        failed = WalkFailed(walk.request_id, walk.walk_id, self._rank, error.code, sentence(error))
        self._endpoint.send("conductor", failed)

    def refuse_request(self, request_id: str, error: MstarError) -> None:
        """It may have ended well without our knowing: the conductor says which, and what it holds comes back then."""
        self.refused.add(request_id)
        failed = WalkFailed(request_id, self.last_walk_id, self._rank, error.code, sentence(error))
        self._endpoint.send("conductor", failed)

    def cancel(self, request_id: str) -> None:
        """The request ends without success; what it left on this rank is as if it had never been."""
        walk = self.active.get(request_id)
        if walk is not None:
            self.end(walk)
        self.end_request(request_id, keep=False)
        self.pages_return(has_ended=False)

    def release_scope(self, scope: str) -> None:
        """A session, or a request that has ended well."""
        walk = self.active.get(scope)
        if walk is not None:
            self.settle(walk)
        self.end_request(scope, keep=True)
        self.scopes.release(scope)
        for loaded in self._models.values():
            loaded.memory.release_scope(scope)
        self.pages_return(has_ended=False)

    def fail_if_stalled(self, walk: ActiveWalk, now_ns: int) -> None:
        """End a walk whose deadline passes while it waits for something else than a unit of its own."""
        if self._is_late(walk, now_ns):
            self.meters.dropped(walk.start.criticality, STALLED)
            self._fail_late(walk, now_ns, "the request got the pages, the room or the turn that it waited for")

    def fail_if_late(self, walk: ActiveWalk, now_ns: int, node: str) -> bool:
        """True if the walk is over now, as its deadline passed before that node of it could run."""
        if not self._is_late(walk, now_ns):
            return False
        self.meters.dropped(walk.start.criticality, LATE)
        self._fail_late(walk, now_ns, f"node {node!r} could run")
        return True

    def drop(self, unit: Unit[Work], now_ns: int) -> bool:
        """End the walk of a unit that cannot make its deadline any more; False if it is to run all the same: it answers
        even if late, or shows whether there really is no hope."""
        walk, node = unit.work.walk, unit.work.firing.name
        if walk.stage is not Stage.RUNNING:
            return True
        if self.fail_if_late(walk, now_ns, node):
            walk.pace.stopped(walk.marks, walk.ran_ns, (unit.work.firing.node_index, unit.work.firing.iteration))
            return True
        if walk.start.anytime and walk.begun:
            unit.drop_after_ns = None
            return False
        deadline_ns = walk.start.deadline_ns
        assert deadline_ns is not None
        assert unit.drop_after_ns is not None
        if walk.pace.is_doubtful():
            walk.is_trial, unit.drop_after_ns = True, deadline_ns - 1
            return False
        self.meters.dropped(walk.start.criticality, HOPELESS)
        left_ms, least_ms = (deadline_ns - now_ns) / 1e6, (deadline_ns - unit.drop_after_ns) / 1e6
        self.fail(
            walk,
            DeadlineExceeded(
                f"{left_ms:.1f} ms were left when node {node!r} could run, and the request takes at least "
                f"{least_ms:.1f} ms from there: it was not computed, give it more time (budget_ms)"
            ),
        )
        return True

    def ends_at_ns(self, walk: ActiveWalk) -> int | None:
        """Its deadline, if it is not answered even when late."""
        start = walk.start
        return None if start.anytime and walk.begun else start.deadline_ns

    def _is_late(self, walk: ActiveWalk, now_ns: int) -> bool:
        end_ns = self.ends_at_ns(walk)
        return end_ns is not None and now_ns >= end_ns

    def _fail_late(self, walk: ActiveWalk, now_ns: int, what: str) -> None:
        assert walk.start.deadline_ns is not None
        late_ms = (now_ns - walk.start.deadline_ns) / 1e6
        message = f"the deadline passed {late_ms:.1f} ms before {what}: give it more time (budget_ms)"
        self.fail(walk, DeadlineExceeded(message))

    def refuse(self, start: StartWalk, error: MstarError) -> None:
        self.early.drop(start.walk_id)
        self.end_request(start.request_id, keep=False)
        failed = WalkFailed(start.request_id, start.walk_id, self._rank, error.code, sentence(error))
        self._endpoint.send("conductor", failed)

    def end(self, walk: ActiveWalk) -> None:
        """Forget a walk, whatever ended it."""
        self.active.pop(walk.request_id, None)
        self.stop(walk)
        walk.stage = Stage.ENDED
        self.pages_return(has_ended=True)

    def stop(self, walk: ActiveWalk) -> None:
        if walk.num_ready:
            self._scheduler.remove_request(walk.request_id)
        walk.drop_progress()
        self.waiters.forget(walk)
        self.room.forget(walk)
        self.early.drop(walk.walk_id)
        self.stalled.discard(walk)

    def end_request(self, request_id: str, keep: bool) -> None:
        self.finished.pop(request_id, None)
        self.ages.pop(request_id, None)
        self.refused.discard(request_id)
        self.scopes.end_request(request_id, keep)
        for loaded in self._models.values():
            loaded.memory.end_request(request_id, keep)

    def fail_after(self, walk: ActiveWalk, after: Firing | None, error: BaseException) -> None:
        if walk.stage is Stage.ENDED:
            return
        if not isinstance(error, MstarError):
            logger.error("request %s cannot go on in walk %s", walk.request_id, walk.start.walk, exc_info=error)
            where = f"node {after.name!r}" if after is not None else f"the start of walk {walk.start.walk!r}"
            error = Internal(f"what follows {where} failed ({type(error).__name__})")
        self.fail(walk, error)

    def pages_return(self, has_ended: bool) -> None:
        self.pages_came = True
        self.num_to_resume += has_ended
