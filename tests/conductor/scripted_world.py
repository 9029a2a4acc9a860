"""Everything around a conductor, as plain records: workers that act in any order, the server's books, and an oracle.

The world checks, on every record that the conductor sends and at the end, what the conductor promises.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from conductor_rig import Rig
from request_books import Level, RequestBook
from scripted_workers import WorkerModel
from warm_books import WarmBook

from mstar_rt.message import (
    Admitted,
    CancelRequest,
    CloseSession,
    Fetch,
    Finished,
    Message,
    OpenSession,
    PeerGone,
    Release,
    ReleaseScope,
    RequestFailed,
    ResumeWalk,
    ServingState,
    SessionOpened,
    StartWalk,
    SuspendWalk,
    WalkDone,
    Warmed,
    WarmUp,
    WorkerReady,
)  # fmt: skip


class World:
    """`session_level[s][rank]` and `RequestBook.level[rank]` are what the ranks hold by the conductor's order of
    things; `truth[s]` is what the session's finished requests have left, wherever it lies."""

    def __init__(self, placement: str) -> None:
        self.rig = Rig(placement)
        self.ranks = self.rig.placement.ranks_of("m")
        self.workers: dict[int, WorkerModel | None] = dict.fromkeys(self.ranks)
        self.warmth = WarmBook(self.rig.placement)
        self.ready = self.warmth.ready
        self.holds: set[tuple[int, str]] = set()
        self.blocks: dict[int, tuple[str, str]] = {}
        self.requests: dict[str, RequestBook] = {}
        self.sessions: dict[str, set[int]] = {}
        self.lost: set[str] = set()
        self.truth: dict[str, Level] = {}
        self.session_level: dict[str, dict[int, Level]] = {}
        self.num_lives: Counter[int] = Counter()
        self.last_walk_id = 0

    # --- what the outside does ---------------------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        if isinstance(message, Warmed):
            self.warmth.answer(message)
        self.rig.conductor.handle(message)
        self.observe()

    def start_worker(self, rank: int) -> None:
        self.num_lives[rank] += 1
        worker = self.workers[rank] = WorkerModel(rank, pid=100 + self.num_lives[rank] % 2)  # pids come again
        worker.outbox.append(WorkerReady(rank, worker.pid, ["m"], 1.0))

    def kill(self, rank: int, num_heard: int) -> None:
        """The last `num_heard` of its words reach the conductor after the news of its death."""
        worker = self.workers[rank]
        assert worker is not None
        self.workers[rank] = None
        self.warmth.lose(rank)
        self.lost |= {session for session, truth in self.truth.items() if truth.lies_on(rank)}
        for levels in [*self.session_level.values(), *(book.level for book in self.requests.values())]:
            levels.pop(rank, None)
        self.rig.conductor.worker_lost(rank, f"rank {rank} died", worker.pid)
        self.observe()
        for message in list(worker.outbox)[:num_heard]:
            self.handle(message)

    def open_session(self, session: str) -> None:
        self.sessions[session] = set()
        self.truth[session] = Level()
        self.session_level[session] = defaultdict(Level)
        self.handle(OpenSession(session, "m", "ipv4:1"))

    def close_session(self, session: str) -> None:
        self.lost.discard(session)
        self.handle(CloseSession(session))
        self._forget_session(session)

    def _forget_session(self, session: str) -> None:
        self.sessions.pop(session, None)
        self.truth.pop(session, None)
        self.session_level.pop(session, None)

    def submit(self, request_id: str, task: str, session: str | None, names: set[str], **fields: Any) -> None:
        is_warm_up = fields.get("warmup_on") is not None
        refs = {name: self.rig.block() for name in names}
        readers = self.rig.placement.readers("m", self.rig.conductor._models["m"].task(task).walks)
        for name, ref in refs.items():
            assert ref.segment is not None
            self.blocks[ref.segment.block_id] = (request_id, name)
            self.holds |= {(ref.segment.block_id, f"worker/{rank}") for rank in readers.get(name, ())}
        self.requests[request_id] = RequestBook(
            task, session, names, set(self.ready if is_warm_up else self.warmth.warm)
        )
        client = "" if is_warm_up else "ipv4:1"
        self.rig.submit(request_id, task, inputs=refs, session_id=session, client=client, **fields)
        self.observe()

    def cancel(self, request_id: str) -> None:
        self.handle(CancelRequest(request_id))

    def deliver(self, rank: int) -> None:
        """One word of a worker reaches the conductor."""
        worker = self.workers[rank]
        assert worker is not None
        message = worker.outbox.popleft()
        if isinstance(message, WorkerReady):
            self.warmth.come(rank)
        if isinstance(message, WalkDone):
            self._note_done(message)
        self.handle(message)

    def _note_done(self, done: WalkDone) -> None:
        """By the books: the walk is over when all its ranks have said so under its present number."""
        book = self.requests[done.request_id]
        if book.answers or done.walk_id in (book.suspended_id, *range(book.walk_id)):
            return
        book.done[done.rank] = done
        if set(book.done) != set(book.plan.ranks):
            return
        for part in book.done.values():
            book.totals["emitted"] += part.num_emitted
            book.totals["steps"] += part.node_times["n"].num_steps
        book.totals["iterations"] += max(part.num_iterations["l"] for part in book.done.values())
        for name, rank in book.plan.persists.items():
            book.values[name] = book.level[rank].values[name] = (done.walk_id, rank)
        for cache, ranks in book.plan.caches.items():
            for rank in ranks:
                book.facts[cache].add((done.walk_id, rank))
                book.level[rank].caches[cache].add((done.walk_id, rank))

    def work(self, rank: int) -> None:
        """A worker reads one message, and lets go of the inputs in it."""
        worker = self.workers[rank]
        assert worker is not None
        message = worker.read(self.requests)
        if isinstance(message, StartWalk):
            for ref in message.inputs.values():
                assert ref.segment is not None
                self.holds.remove((ref.segment.block_id, f"worker/{rank}"))

    # --- what the conductor says -------------------------------------------------------------------------------------

    def observe(self) -> None:
        for to, message in self.rig.endpoint.take():
            if to == "server":
                self._at_server(message)
            else:
                rank = int(to.partition("/")[2])
                worker = self.workers[rank]
                assert worker is not None, f"a {type(message).__name__} was sent to a dead worker"
                assert rank in self.ready, f"a {type(message).__name__} was sent to a worker that is not ready"
                self._at_worker(rank, message)
                worker.inbox.append(message)
        self.warmth.check()

    def _at_server(self, message: Message) -> None:
        match message:
            case Release():
                for block_id in message.block_ids:
                    self.holds.remove((block_id, message.holder))
                    request_id, name = self.blocks[block_id]
                    rank = int(message.holder.partition("/")[2])
                    assert (rank, name) not in self.requests[request_id].given
            case PeerGone():
                self.holds = {hold for hold in self.holds if hold[1] != message.address}
            case Finished():
                self._finished(self.requests[message.request_id], message)
            case RequestFailed():
                book = self.requests.get(message.request_id)
                if book is not None:
                    self._failed(book, message)
            case WarmUp():
                self.warmth.ask(message)
            case ServingState():
                assert message.serving or message.reason
                self.warmth.says_serving = message.serving
            case SessionOpened():
                assert message.session_id in self.sessions
            case _:
                raise AssertionError(f"the server got {message}")

    def _finished(self, book: RequestBook, message: Finished) -> None:
        book.answers.append(message)
        assert book.released_on == book.started
        assert not book.cancelled_on
        assert message.num_emitted == book.totals["emitted"]
        assert message.node_times["n"].num_steps == book.totals["steps"]
        assert message.num_iterations["l"] == book.totals["iterations"]
        if book.session is None:
            return
        truth = self.truth[book.session]
        truth.values |= book.values
        truth.caches["memory"] |= book.facts["memory"]
        for rank, level in book.level.items():
            self.session_level[book.session][rank].take_over(level, ("memory",))

    def _failed(self, book: RequestBook, message: RequestFailed) -> None:
        book.answers.append(message)
        alive = {rank for rank in book.started if rank in self.ready}
        assert alive <= book.cancelled_on
        assert alive <= book.released_on

    def _at_worker(self, rank: int, message: Message) -> None:
        match message:
            case StartWalk():
                self._started(rank, message)
            case CancelRequest():
                book = self.requests[message.request_id]
                assert rank in book.started
                assert rank not in book.cancelled_on | book.released_on
                book.cancelled_on.add(rank)
            case ReleaseScope():
                if message.scope in self.requests:
                    book = self.requests[message.scope]
                    assert rank in book.started
                    assert rank not in book.released_on
                    book.released_on.add(rank)
                else:
                    self.session_level.get(message.scope, {}).pop(rank, None)
            case ResumeWalk():
                book = self.requests[message.request_id]
                if message.walk_id != book.walk_id:
                    assert message.walk_id > self.last_walk_id
                    self.last_walk_id = book.walk_id = message.walk_id
                    book.done = {}
            case SuspendWalk():
                book = self.requests[message.request_id]
                assert book.walk_id == message.walk_id
                book.suspended_id = message.walk_id
            case Admitted():
                assert message.last_walk_id >= self.last_walk_id
                self.last_walk_id = message.last_walk_id

    def _started(self, rank: int, start: StartWalk) -> None:
        book = self.requests[start.request_id]
        assert not book.answers
        assert not book.cancelled_on | book.released_on
        assert rank in book.may_use, "it was not warm"
        book.started.add(rank)
        if start.walk_id != book.walk_id:
            assert start.walk_id > self.last_walk_id
            self.last_walk_id = book.walk_id = start.walk_id
            book.done = {}
            choices = [group.ranks for group in self.rig.placement.groups("m")]
            book.plan = self._plan_of(start, choices)
        for name in start.inputs:
            assert (rank, name) not in book.given, "given twice"
            book.given.add((rank, name))
        self._check_values(rank, start, book)
        self._check_caches(rank, start, book)

    def _plan_of(self, start: StartWalk, groups: list[tuple[int, ...]]) -> Any:
        """The plan whose node ranks these are, whatever was chosen for groups that the walk does not use."""
        choices: list[tuple[int, ...]] = [()]
        for ranks in groups:
            choices = [(*chosen, index) for chosen in choices for index in range(len(ranks))]
        plans = [self.rig.placement.route("m", chosen).walk(start.walk) for chosen in choices]
        return next(plan for plan in plans if list(plan.node_ranks) == start.node_ranks)

    def _check_values(self, rank: int, start: StartWalk, book: RequestBook) -> None:
        """Every input that the rank reads is given, was given, lies here, or is fetched from where the newest is."""
        fetched = {fetch.name: fetch for fetch in start.fetches if not fetch.is_cache}
        levels = [self.session_level[book.session]] if book.session else []
        truth = {**(self.truth[book.session].values if book.session else {}), **book.values}
        assert set(fetched) <= set(book.plan.inputs[rank])
        for name in book.plan.inputs[rank]:
            if name in book.inputs:
                assert (rank, name) in book.given
                assert name not in fetched
            elif name in truth:
                walk_id, owner = truth[name]
                if owner == rank:
                    here = [book.level[rank], *(level[rank] for level in levels)]
                    assert next(level.values[name] for level in here if name in level.values) == truth[name]
                    assert name not in fetched
                else:
                    assert fetched[name] == Fetch(name, owner, walk_id)
            else:
                assert name not in fetched

    def _check_caches(self, rank: int, start: StartWalk, book: RequestBook) -> None:
        """After its fetches the rank knows all that was ever done to the cache."""
        fetches = [fetch for fetch in start.fetches if fetch.is_cache]
        assert [fetch.walk_id for fetch in fetches] == sorted(fetch.walk_id for fetch in fetches)
        session = self.session_level[book.session] if book.session else defaultdict(Level)
        for cache, ranks in book.plan.caches.items():
            if rank not in ranks:
                continue
            mine = [fetch for fetch in fetches if fetch.name == cache]
            for fetch in mine:
                assert fetch.rank != rank
                assert self.workers[fetch.rank] is not None
                own = fetch.walk_id >= start.age
                theirs = book.level[fetch.rank].caches[cache] | session[fetch.rank].caches[cache]
                (book.level if own else session)[rank].caches[cache] |= theirs
            known = book.level[rank].caches[cache] | session[rank].caches[cache]
            truth = self.truth[book.session].caches[cache] if book.session else set()
            assert known >= truth | book.facts[cache], (cache, rank, mine)

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everyone does what is left to do."""
        while self._any_step():
            pass

    def _any_step(self) -> bool:
        moved = False
        for rank, worker in self.workers.items():
            if worker is None:
                continue
            while worker.outbox:
                self.deliver(rank)
                moved = True
            while worker.inbox:
                self.work(rank)
                moved = True
            for part in worker.running():
                worker.finish(part)
                moved = True
        return moved

    def check_nothing_left(self) -> None:
        """After `settle`, with all sessions closed."""
        for request_id, book in self.requests.items():
            assert len(book.answers) == 1, (request_id, book.answers)
        assert not self.holds
        for worker in self.workers.values():
            assert worker is None or not worker.holds_anything(), worker
        conductor = self.rig.conductor
        running = conductor._running
        assert not running._states
        assert not running._yielded._suspended
        assert not running._yielded._num_parts
        assert not any(running._num_on.values())
        assert not conductor._sessions._open
        assert not conductor._sessions._lost
        assert not conductor._sessions._num_on
        self._check_admission()

    def _check_admission(self) -> None:
        admission = self.rig.conductor._admission
        assert not admission._admitted
        assert not admission._requests_of
        assert not admission._sessions_of
        assert not admission._queues.waiting
        assert not any(admission._queues.num.values())
        assert all(level.cost_ns == 0 for level in admission._queues.levels.values())
