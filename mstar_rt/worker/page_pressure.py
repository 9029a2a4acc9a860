"""Who gives way when pages are short: never the oldest, so that every walk that fits alone is served."""

from __future__ import annotations

from mstar_rt.errors import InvalidArgument, MstarError, ResourceExhausted
from mstar_rt.message import ResumeWalk, SuspendWalk, WalkYields
from mstar_rt.transport import ControlEndpoint
from mstar_rt.worker.active import ActiveWalk, Stage, Work
from mstar_rt.worker.page_waiters import Waiter
from mstar_rt.worker.unit import SchedulingPolicy
from mstar_rt.worker.walk_table import WalkTable
from mstar_rt.worker.walks import Walks


class PagePressure:
    """Suspends, resumes and refuses.

    When nothing can run here and something waits for pages, the youngest walk that is younger than the oldest waiter
    gives its pages back and starts again later: at once if it is on this rank alone, else the conductor is asked to
    have all its ranks do so. Ages are the same on all ranks, so that walks which hold pages on one rank and wait on
    another cannot block one another for good: the oldest of the deployment gets its pages on every rank.
    """

    def __init__(
        self, table: WalkTable, walks: Walks, scheduler: SchedulingPolicy[Work], endpoint: ControlEndpoint, rank: int
    ) -> None:
        self._table = table
        self._walks = walks
        self._scheduler = scheduler
        self._endpoint = endpoint
        self._rank = rank

    def relieve(self) -> bool:
        """Make one walk give way, or refuse what cannot be served; False if only a message can change anything."""
        table = self._table
        here = [walk for walk in table.active.values() if walk.stage is not Stage.SUSPENDED]
        if table.refused or any(walk.yielding for walk in here):
            return False
        oldest = table.waiters.oldest()
        age, loaded, cache = oldest.walk.age, oldest.walk.loaded, oldest.cache
        waiting = set(table.waiters.walks())  # would take the pages that come back before the oldest does
        here = [walk for walk in here if walk.loaded is loaded]
        holding = [walk for walk in here if walk.memory.num_page_holds(cache)]
        younger = [walk for walk in here if walk.age > age and (walk in waiting or walk in holding)]
        if younger:
            return self._make_yield(max(younger, key=lambda walk: walk.age))
        if any(walk.age < age for walk in holding):
            return False
        return self._refuse_one(oldest)

    def _refuse_one(self, waiter: Waiter) -> bool:
        """No walk here can give pages to the waiter. What earlier walks of younger requests left, which cannot be made
        again, goes before it; for that of older ones it waits."""
        walk, ages = waiter.walk, self._table.ages
        requests = walk.loaded.memory.requests_with_pages(waiter.cache)
        holding = [request_id for request_id in requests if request_id in ages and request_id != walk.request_id]
        if any(ages[request_id] < walk.age for request_id in holding):
            return False
        if holding:
            error = ResourceExhausted("an older request needs the pages that this one holds; try again")
            self._table.refuse_request(max(holding, key=ages.__getitem__), error)
            return False
        self._refuse(waiter)
        return True

    def suspend(self, message: SuspendWalk) -> None:
        """The conductor has all parts of a walk give up what they did."""
        walk = self._table.active.get(message.request_id)
        if walk is None or walk.walk_id != message.walk_id:
            return
        self._table.stop(walk)
        walk.stage, walk.yielding = Stage.SUSPENDED, False
        self._table.stalled.add(walk)
        self._table.pages_return(has_ended=False)

    def resume(self, message: ResumeWalk) -> None:
        """The conductor has all parts of a walk begin again, under a new number."""
        table = self._table
        table.last_walk_id = max(table.last_walk_id, message.walk_id)
        walk = table.active.get(message.request_id)
        if walk is None or walk.stage is not Stage.SUSPENDED:
            table.early.drop(message.walk_id)
            return
        walk.walk_id, walk.stage = message.walk_id, Stage.WAITING
        if not walk.asked:
            self._walks.begin_again(walk)

    def try_again(self) -> None:
        """Pages have come back: for those that wait for such."""
        table = self._table
        table.pages_came = False
        for waiter in table.waiters.take_waiting():
            if waiter.unit is None:
                self._walks.begin_again(waiter.walk)
            else:
                self._scheduler.add((waiter.unit,))
                waiter.walk.num_ready += 1
        num_to_resume, table.num_to_resume = table.num_to_resume, 0
        if not num_to_resume and all(walk.stage is Stage.SUSPENDED for walk in table.active.values()):
            num_to_resume = 1
        for _ in range(num_to_resume):
            walk = table.waiters.take_oldest_suspended()
            if walk is None:
                return
            self._walks.begin_again(walk)

    def _make_yield(self, walk: ActiveWalk) -> bool:
        if not walk.spans_ranks:
            self._suspend_here(walk)
            return True
        walk.yielding = True
        self._endpoint.send("conductor", WalkYields(walk.request_id, walk.walk_id, self._rank))
        return False

    def _refuse(self, waiter: Waiter) -> None:
        if waiter.unit is not None:
            what = f"node {waiter.unit.work.firing.name!r} does"
        else:
            what = "what the request's earlier walks left does"
        num_kept = waiter.walk.loaded.memory.num_session_page_holds(waiter.cache)
        advice = "ask for fewer samples or a shorter horizon, or raise workers.kv_memory_mb"
        does_not_fit = f"{what} not fit into this worker's pages"
        error: MstarError = InvalidArgument(f"{does_not_fit}, even alone: {waiter.shortage}; {advice}")
        if num_kept:
            error = ResourceExhausted(
                f"{does_not_fit}, beside the {num_kept} that open sessions keep: {waiter.shortage}; "
                f"close sessions that are not needed, {advice}"
            )
        self._table.fail(waiter.walk, error)

    def _suspend_here(self, walk: ActiveWalk) -> None:
        """A walk on this rank alone starts again when another has ended."""
        self._table.stop(walk)
        walk.stage = Stage.SUSPENDED
        self._table.waiters.suspend(walk)
        self._table.pages_return(has_ended=False)
