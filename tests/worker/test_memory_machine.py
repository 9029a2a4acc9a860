"""Any history of walks, moves, fetches, restarts and failures over three ranks keeps every sequence and every page right.

A plain model holds what each rank must have at each level (session, request, walk), as lists of numbers.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mstar_rt.cache.moving import apply_deltas, export_delta
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import InvalidArgument, PagesExhausted
from mstar_rt.model import KVSpec
from mstar_rt.worker.memory import RequestMemory, WalkMemory

NUM_RANKS = 3
LIFETIMES = ("walk", "request", "session")
SCOPES = ("session 1", "session 1", "session 2", "alone")
LABELS = ("a", "b", ("c", 1), 4)
WRITES = ("append", "append", "append", "truncate", "fork", "release", "release", "put")
ACCIDENTS = ("restart", "restart", "restart", "fail", "fail", "close")

Content = dict[Hashable, list[int]]
Level = dict[str, Content]
"""Sequences by cache."""


@dataclass
class Rank:
    memory: RequestMemory
    pools: dict[str, KVPool]
    sessions: dict[str, Level] = field(default_factory=dict)


@dataclass
class Request:
    """`newest[cache]` is (rank, walk) that wrote it last; `levels` and `walks` are by rank."""

    request_id: str
    scope: str
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    levels: dict[int, Level] = field(default_factory=dict)
    walks: dict[int, WalkMemory] = field(default_factory=dict)
    working: dict[int, Level] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    walk_id: int = 0
    first_walk: int = 0
    holder: int = 0


class ThreeRanks(RuleBasedStateMachine):
    @initialize(
        page_sizes=st.lists(st.integers(1, 5), min_size=NUM_RANKS, max_size=NUM_RANKS),
        num_pages=st.lists(st.integers(4, 40), min_size=NUM_RANKS, max_size=NUM_RANKS),
    )
    def set_up(self, page_sizes: list[int], num_pages: list[int]) -> None:
        self.ranks = []
        for page_size, count in zip(page_sizes, num_pages, strict=True):
            specs = {name: KVSpec(2, 1, 1, page_size, 30, lifetime=name) for name in LIFETIMES}
            pools = {name: KVPool(spec, count, dtype=torch.float64) for name, spec in specs.items()}
            self.ranks.append(Rank(RequestMemory(specs, pools), pools))
        self.requests: dict[str, Request] = {}
        self.session_newest: dict[str, dict[str, tuple[int, int]]] = {}
        self.num_walks = self.num_requests = self.num_tokens = 0

    # --- requests and walks ------------------------------------------------------------------------------------------

    @rule(
        scope=st.sampled_from(SCOPES),
        ranks=st.permutations(range(NUM_RANKS)),
        num_ranks=st.sampled_from([1, 2, 2, 3]),
        loses=st.integers(0, 12),
    )
    def start_walk(self, scope: str, ranks: list[int], num_ranks: int, loses: int) -> None:
        """`loses`: the request is cancelled before that fetched cache gets in."""
        ranks = ranks[:num_ranks]
        request = self.requests.get(scope)
        if request is None:
            self.num_requests += 1
            request_id = f"request {self.num_requests}"
            request = Request(request_id, request_id if scope == "alone" else scope, first_walk=self.num_walks + 1)
            request.newest = dict(self.session_newest.get(scope, {}))
            self.requests[scope] = request
        if request.walks:
            return
        self.num_walks += 1
        request.walk_id, request.holder = self.num_walks, ranks[0]
        request.started |= set(ranks)
        for rank in ranks:
            request.walks[rank] = self.ranks[rank].memory.begin(request.request_id, request.scope, LIFETIMES)
        for rank in ranks:
            for cache in ("request", "session"):
                loses -= 1
                if not self.fetch(request, cache, rank, arrives=loses != 0):
                    self.fail(request)
                    return
        request.working = {rank: {name: self.committed(request, rank, name) for name in LIFETIMES} for rank in ranks}

    def committed(self, request: Request, rank: int, cache: str) -> Content:
        """A copy of the newest level that the rank has."""
        session = self.ranks[rank].sessions.get(request.scope, {})
        return copy.deepcopy(request.levels.get(rank, {}).get(cache, session.get(cache, {})))

    def fetch(self, request: Request, cache: str, rank: int, arrives: bool) -> bool:
        source, walk_id = request.newest.get(cache, (rank, 0))
        if source == rank:
            return True
        of_request = walk_id >= request.first_walk
        memory = self.ranks[rank].memory
        lost = memory.to_fetch(request.request_id, cache, source, walk_id, of_request)
        wanted = self.committed(request, source, cache)
        if lost is None:
            assert self.committed(request, rank, cache) == wanted, "the copy is not as good as was said"
            return True
        deltas = self.ranks[source].memory.export_committed(request.request_id, request.scope, cache, rank, lost)
        if of_request:
            request.levels.setdefault(rank, {}).setdefault(cache, self.committed(request, rank, cache))
        if not arrives:
            return False
        try:
            memory.apply_fetched(request.request_id, cache, source, walk_id, of_request, deltas)
        except PagesExhausted:
            return False
        is_session = not of_request and cache not in request.levels.get(rank, {})
        level = self.ranks[rank].sessions.setdefault(request.scope, {}) if is_session else request.levels[rank]
        level[cache] = wanted
        return True

    def running(self, pick: int) -> Request | None:
        running = [request for request in self.requests.values() if request.walks]
        return running[pick % len(running)] if running else None

    @precondition(lambda self: self.running(0) is not None)
    @rule(pick=st.integers(0, 5))
    def finish_walk(self, pick: int) -> None:
        request = self.running(pick)
        assert request is not None
        for rank, walk in request.walks.items():
            walk.commit()
            level = request.levels.setdefault(rank, {})
            level.update({name: request.working[rank][name] for name in ("request", "session")})
        request.newest.update(dict.fromkeys(("request", "session"), (request.holder, request.walk_id)))
        request.walks, request.working = {}, {}

    def restart(self, request: Request) -> None:
        for rank, walk in request.walks.items():
            walk.discard()
            request.working[rank] = {name: self.committed(request, rank, name) for name in LIFETIMES}

    @rule(scope=st.sampled_from(SCOPES))
    def finish_request(self, scope: str) -> None:
        request = self.requests.get(scope)
        if request is None or request.walks:
            return
        del self.requests[scope]
        for rank in request.started:
            self.ranks[rank].memory.end_request(request.request_id, keep=True)
            if scope != "alone" and "session" in request.levels.get(rank, {}):
                session = self.ranks[rank].sessions.setdefault(scope, {})
                session["session"] = request.levels[rank]["session"]
        if "session" in request.newest:
            self.session_newest.setdefault(scope, {})["session"] = request.newest["session"]
        if scope == "alone":
            self.session_newest.pop(scope, None)

    @rule(scope=st.sampled_from(SCOPES), what=st.sampled_from(ACCIDENTS))
    def go_wrong(self, scope: str, what: str) -> None:
        request = self.requests.get(scope)
        if what == "close" and scope != "alone":
            self.close_session(scope)
        elif request is not None and what == "fail":
            self.fail(request)
        elif request is not None:
            self.restart(request)

    def fail(self, request: Request) -> None:
        self.requests = {scope: other for scope, other in self.requests.items() if other is not request}
        for rank in request.started:
            self.ranks[rank].memory.end_request(request.request_id, keep=False)

    def close_session(self, scope: str) -> None:
        if scope in self.requests:
            self.fail(self.requests[scope])
        self.session_newest.pop(scope, None)
        for rank in self.ranks:
            rank.memory.release_scope(scope)
            rank.sessions.pop(scope, None)

    # --- what nodes do -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running(0) is not None)
    @rule(
        pick=st.integers(0, 5),
        cache=st.sampled_from(LIFETIMES),
        writes=st.lists(
            st.tuples(st.sampled_from(WRITES),
                      st.sampled_from(LABELS), st.sampled_from(LABELS), st.integers(0, 9)),
            min_size=1, max_size=5,
        ),
        towards=st.integers(0, 5),
    )  # fmt: skip
    def write_and_move(
        self, pick: int, cache: str, writes: list[tuple[str, Hashable, Hashable, int]], towards: int
    ) -> None:
        """The next node runs on another rank, which needs all caches as this one left them."""
        request = self.running(pick)
        assert request is not None
        for what, label, source, number in writes:
            self.write_once(request, request.holder, cache, what, label, source, number)
        rank = list(request.walks)[towards % len(request.walks)]
        if rank != request.holder and self.send(request, request.holder, rank):
            request.holder = rank

    def write_once(
        self, request: Request, rank: int, cache: str, what: str, label: Hashable, source: Hashable, number: int
    ) -> None:
        store, content = request.walks[rank].store(cache), request.working[rank][cache]
        if what == "release":
            store.release(label)
            content.pop(label, None)
        elif what == "put":
            store.put(label, store.pool.new_table())
            content[label] = []
        elif what == "fork" and source in store:
            store.fork(source, label)
            content[label] = list(content[source])
        else:
            table, tokens = store.get(label), content.setdefault(label, [])
            if what == "truncate":
                table.truncate(min(number, table.length))
                del tokens[number:]
            elif what == "append":
                self.append(store, label, tokens, number)

    def append(self, store: SequenceStore, label: Hashable, tokens: list[int], number: int) -> None:
        table = store.get(label)
        try:
            table.append(number)
        except (PagesExhausted, InvalidArgument):
            return
        # Every third time the numbers are those of earlier ones, as when a prompt is read again.
        new = range(number) if number % 3 == 0 else range(self.num_tokens, self.num_tokens + number)
        self.num_tokens += number
        tokens += new
        values = torch.tensor(new, dtype=torch.float64) + torch.arange(4).view(2, 2, 1) / 4
        store.pool.write_tokens(table, len(tokens) - number, values[..., None, None])

    @precondition(lambda self: self.running(0) is not None)
    @rule(pick=st.integers(0, 5), towards=st.integers(0, 5), number=st.integers(1, 4))
    def branch(self, pick: int, towards: int, number: int) -> None:
        """Two ranks write different sequences at the same time and join."""
        request = self.running(pick)
        assert request is not None
        others = [rank for rank in request.walks if rank != request.holder]
        if not others or not self.send(request, request.holder, others[towards % len(others)]):
            return
        other = others[towards % len(others)]
        for cache in LIFETIMES:
            self.write_once(request, request.holder, cache, "append", "here", "", number)
            self.write_once(request, other, cache, "append", "there", "", number)
        for cache in LIFETIMES:  # before the other sends: its own are not here yet
            request.working[other][cache]["here"] = request.working[request.holder][cache]["here"]
        if self.send(request, other, request.holder, but=("here",)):
            self.send(request, request.holder, other)

    def send(self, request: Request, source: int, target: int, but: tuple[str, ...] = ()) -> bool:
        """False: there were no pages, the walk has started again."""
        for cache in LIFETIMES:
            deltas = export_delta(request.walks[source].store(cache), target)
            assert not [delta for delta in deltas if delta.label in but]
            try:
                apply_deltas(request.walks[target].store(cache), source, deltas)
            except PagesExhausted:
                self.restart(request)
                return False
            request.working[target][cache] = copy.deepcopy(request.working[source][cache])
        return True

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def everything_reads_back(self) -> None:
        for index, rank in enumerate(getattr(self, "ranks", [])):
            tables: dict[str, list[list[int]]] = {name: [] for name in LIFETIMES}
            for scope, level in rank.sessions.items():
                self.check(rank.memory._sessions[scope].stores, level, tables)
            for request in self.requests.values():
                if index in request.levels:
                    self.check(rank.memory._requests[request.request_id].stores, request.levels[index], tables)
                if index in request.working:
                    self.check(request.walks[index]._stores, request.working[index], tables)
            for name, pool in rank.pools.items():
                holders = Counter(page for pages in tables[name] for page in pages)
                allocator = pool.allocator
                assert all(allocator.ref_count(page) == holders[page] for page in range(allocator.num_pages))
                assert allocator.num_held == len(holders)
                assert allocator.num_free + allocator.num_held == allocator.num_pages

    @staticmethod
    def check(stores: dict[str, SequenceStore], level: Level, tables: dict[str, list[list[int]]]) -> None:
        for name, store in stores.items():
            assert {label: read(store, label) for label in store} == level[name]
            tables[name] += [store.get(label).pages for label in store]

    def teardown(self) -> None:
        for request in list(getattr(self, "requests", {}).values()):
            self.fail(request)
        for rank in getattr(self, "ranks", []):
            for scope in SCOPES:
                rank.memory.release_scope(scope)
            assert rank.memory.num_scopes == 0
            assert all(pool.allocator.num_held == 0 for pool in rank.pools.values())


def read(store: SequenceStore, label: Hashable) -> list[int]:
    """The numbers of a sequence, each from every layer's key and value, token by token."""
    table, pool = store.get(label), store.pool
    numbers = []
    for position in range(table.length):
        slot = pool.kv[:, :, table.pages[position // pool.page_size], position % pool.page_size].flatten()
        assert (slot - slot[0]).tolist() == [0, 0.25, 0.5, 0.75]
        numbers.append(int(slot[0]))
    return numbers


ThreeRanks.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestThreeRanks = ThreeRanks.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_long_histories(seed: int) -> None:
    """The same machine driven by plain chance, which gets further into long walks than a search for small examples."""
    chance = random.Random(seed)
    machine = ThreeRanks()
    machine.set_up([chance.randint(1, 5) for _ in range(3)], [chance.choice([4, 10, 40, 40]) for _ in range(3)])
    for _ in range(60):
        number = chance.random()
        scope = chance.choice(SCOPES)
        if machine.running(0) is None or number < 0.12:
            machine.start_walk(scope, chance.sample(range(3), 3), chance.choice([1, 2, 2, 3, 3]), chance.randint(0, 14))
        elif number < 0.65:
            writes = [
                (chance.choice(WRITES), chance.choice(LABELS), chance.choice(LABELS), chance.randint(0, 9))
                for _ in range(chance.randint(1, 4))
            ]
            machine.write_and_move(chance.randint(0, 5), chance.choice(LIFETIMES), writes, chance.randint(0, 5))
        elif number < 0.72:
            machine.branch(chance.randint(0, 5), chance.randint(0, 5), chance.randint(1, 4))
        elif number < 0.84:
            machine.finish_walk(chance.randint(0, 5))
        elif number < 0.94:
            machine.finish_request(scope)
        else:
            machine.go_wrong(scope, chance.choice(ACCIDENTS))
        machine.everything_reads_back()
    machine.teardown()
