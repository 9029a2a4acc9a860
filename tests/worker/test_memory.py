"""Sequences live as long as their cache says, on one rank and on several."""

from __future__ import annotations

import pytest
import torch

from mstar_rt.cache.moving import apply_deltas, export_delta
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import FailedPrecondition, PagesExhausted
from mstar_rt.model import KVSpec
from mstar_rt.worker.memory import RequestMemory, WalkMemory

CACHES = {
    lifetime: KVSpec(1, 1, 1, page_size=4, max_sequence_tokens=40, lifetime=lifetime)
    for lifetime in ("walk", "request", "session")
}


class Rank:
    """Memory over small pools; a token's key and value are its number."""

    def __init__(self, num_pages: int = 12) -> None:
        self.pools = {name: KVPool(spec, num_pages) for name, spec in CACHES.items()}
        self.memory = RequestMemory(CACHES, self.pools)

    def begin(self, request_id: str, scope: str = "s") -> WalkMemory:
        return self.memory.begin(request_id, scope, list(CACHES))

    @property
    def num_held(self) -> dict[str, int]:
        return {name: pool.allocator.num_held for name, pool in self.pools.items()}


def write(store: SequenceStore, *values: int) -> None:
    table = store.get("a")
    table.append(len(values))
    store.pool.write_tokens(table, table.length - len(values), as_tokens(values))


def as_tokens(values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).expand(1, 2, -1)[..., None, None]


def read(store: SequenceStore) -> list[int]:
    table = store.get("a")
    return [int(value) for value in store.pool.read_tokens(table, 0, table.length)[0, 0].flatten()]


def contents(walk: WalkMemory) -> dict[str, list[int]]:
    return {name: read(walk.store(name)) for name in CACHES}


def test_a_walk_sees_what_earlier_walks_and_requests_left_by_lifetime() -> None:
    rank = Rank()
    walk = rank.begin("r1")
    for name in CACHES:
        write(walk.store(name), 1, 2)
    walk.commit()
    assert rank.num_held == {"walk": 0, "request": 1, "session": 1}
    walk = rank.begin("r1")
    assert contents(walk) == {"walk": [], "request": [1, 2], "session": [1, 2]}
    for name in CACHES:
        write(walk.store(name), 3)
    walk.release_walk_stores()
    assert rank.num_held["walk"] == 0
    walk.commit()
    rank.memory.end_request("r1", keep=True)
    assert rank.num_held == {"walk": 0, "request": 0, "session": 1}
    assert contents(rank.begin("r2")) == {"walk": [], "request": [], "session": [1, 2, 3]}
    assert contents(rank.begin("r3", "other")) == {"walk": [], "request": [], "session": []}
    for scope in ("r2", "r3", "other", "s"):
        rank.memory.release_scope(scope)
    assert rank.num_held == {"walk": 0, "request": 0, "session": 0}
    assert rank.memory.num_scopes == 0


def test_a_walk_that_starts_again_and_a_request_that_fails_leave_no_trace() -> None:
    rank = Rank()
    walk = rank.begin("r1")
    write(walk.store("session"), 1, 2, 3, 4, 5)
    walk.commit()
    rank.memory.end_request("r1", keep=True)

    first = rank.begin("r2")
    write(first.store("session"), 6)
    write(first.store("request"), 1)
    first.commit()
    second = rank.begin("r2")
    for _ in range(2):  # the same object serves every attempt
        assert contents(second) == {"walk": [], "request": [1], "session": [1, 2, 3, 4, 5, 6]}
        second.store("session").get("a").truncate(0)
        write(second.store("session"), 9)
        second.store("request").release("a")
        write(second.store("walk"), 9)
        second.discard()
        second.discard()
    rank.memory.end_request("r2", keep=False)
    assert rank.num_held == {"walk": 0, "request": 0, "session": 2}
    assert contents(rank.begin("r3"))["session"] == [1, 2, 3, 4, 5]


def test_a_request_without_a_session_keeps_nothing() -> None:
    rank = Rank()
    walk = rank.begin("r1", "r1")
    for name in CACHES:
        write(walk.store(name), 1)
    walk.commit()
    assert contents(rank.begin("r1", "r1")) == {"walk": [], "request": [1], "session": [1]}
    rank.memory.end_request("r1", keep=True)
    assert rank.num_held == {"walk": 0, "request": 0, "session": 0}
    assert rank.memory.num_scopes == 0


def test_a_walk_that_was_not_committed_is_discarded_with_its_request() -> None:
    rank = Rank()
    write(rank.begin("r1").store("session"), 1)
    rank.memory.end_request("r1", keep=True)
    rank.memory.end_request("r1", keep=True)
    assert rank.num_held["session"] == 0


def test_a_sequence_emptied_by_one_walk_is_empty_for_the_next() -> None:
    rank = Rank()
    for request in ("r1", "r2"):
        walk = rank.begin(request)
        write(walk.store("session"), 1)
        walk.commit()
        rank.memory.end_request(request, keep=True)
    walk = rank.begin("r3")
    assert read(walk.store("session")) == [1, 1]
    walk.store("session").release("a")
    walk.commit()
    assert contents(rank.begin("r3"))["session"] == []


def test_a_request_that_outlives_its_session_keeps_nothing() -> None:
    rank = Rank()
    walk = rank.begin("r1")
    write(walk.store("session"), 1)
    rank.memory.release_scope("s")
    walk.commit()
    rank.memory.end_request("r1", keep=True)
    assert rank.num_held["session"] == 0
    assert rank.memory.num_scopes == 0


def test_two_requests_of_one_session_at_once_are_refused() -> None:
    rank = Rank()
    rank.begin("r1")
    with pytest.raises(FailedPrecondition, match="two requests of one session use its cache 'session' at once"):
        rank.begin("r2")
    rank.memory.begin("r2", "s", ["walk", "request"])
    rank.begin("r4", "other")
    rank.memory.end_request("r1", keep=False)
    rank.begin("r2")


def test_starting_a_walk_takes_no_page_and_writing_takes_one() -> None:
    rank = Rank()
    walk = rank.begin("r1")
    write(walk.store("session"), *range(10))
    walk.commit()
    walk = rank.begin("r1")
    walk.store("session")
    assert rank.num_held["session"] == 3
    write(walk.store("session"), 10)
    assert rank.num_held["session"] == 4
    walk.commit()
    assert rank.num_held["session"] == 3


def fetch(source: Rank, target: Rank, request: str, walk_id: int, of_request: bool, arrives: bool = True) -> int:
    """Rank 1 asks rank 0 for the session's cache; returns how many sequences travelled."""
    lost = target.memory.to_fetch(request, "session", 0, walk_id, of_request)
    if lost is None:
        return 0
    deltas = source.memory.export_committed(request, "s", "session", 1, lost)
    if arrives:
        target.memory.apply_fetched(request, "session", 0, walk_id, of_request, deltas)
    return len(deltas)


def test_a_fetched_copy_is_good_until_the_other_rank_writes_again() -> None:
    here, there = Rank(), Rank()
    for walk_id in (1, 4):
        walk = here.begin(f"r{walk_id}")
        write(walk.store("session"), walk_id)
        walk.commit()
        here.memory.end_request(f"r{walk_id}", keep=True)
        for request in ("failing", "kept"):
            walk = there.begin(request)
            num_travelled = fetch(here, there, request, walk_id, of_request=False)
            assert num_travelled == (request == "failing")
            assert read(walk.store("session")) == ([1] if walk_id == 1 else [1, 4])
            walk.commit()
            there.memory.end_request(request, keep=request == "kept")


def test_an_answer_that_never_got_in_is_asked_for_again() -> None:
    here, there = Rank(), Rank()
    walk = here.begin("r1")
    write(walk.store("session"), 1)
    walk.commit()
    here.memory.end_request("r1", keep=True)
    there.begin("r2")
    fetch(here, there, "r2", 1, of_request=False, arrives=False)
    there.memory.end_request("r2", keep=False)
    walk = there.begin("r3")
    assert fetch(here, there, "r3", 1, of_request=False) == 1
    assert read(walk.store("session")) == [1]


def test_what_a_failing_request_fetched_from_its_own_walks_is_forgotten_on_both_ranks() -> None:
    here, there = Rank(), Rank()
    for request, keep in (("r1", True), ("r2", False), ("r3", True)):
        walk = here.begin(request)
        write(walk.store("session"), int(request[1]))
        walk.commit()
        walk_there = there.begin(request)
        assert fetch(here, there, request, int(request[1]), of_request=True) == 1
        assert read(walk_there.store("session")) == {"r1": [1], "r2": [1, 2], "r3": [1, 3]}[request]
        walk_there.commit()
        for rank in (here, there):
            rank.memory.end_request(request, keep)
    assert here.memory.export_committed("r4", "s", "session", 1, lost=False) == []


def test_pages_that_a_fetch_does_not_find_leave_the_session_as_it_was() -> None:
    here, there = Rank(), Rank(num_pages=2)
    walk = here.begin("r1")
    write(walk.store("session"), *range(9))
    walk.commit()
    here.memory.end_request("r1", keep=True)
    there.begin("r2")
    with pytest.raises(PagesExhausted):
        fetch(here, there, "r2", 1, of_request=False)
    there.memory.end_request("r2", keep=False)
    assert there.num_held["session"] == 0
    there.begin("r3")
    assert there.memory.to_fetch("r3", "session", 0, 1, of_request=False) is True


def test_a_cache_that_nobody_wrote_has_nothing_to_send() -> None:
    rank = Rank()
    assert rank.memory.export_committed("r", "s", "session", 1, lost=False) == []
    rank.begin("r")
    assert rank.memory.export_committed("r", "s", "session", 1, lost=True) == []


def test_a_walk_on_two_ranks_that_starts_again_agrees_again() -> None:
    here, there = Rank(), Rank()
    walks = here.begin("r1"), there.begin("r1")
    for attempt in range(3):
        mine, theirs = (walk.store("session") for walk in walks)
        write(mine, 1, 2)
        apply_deltas(theirs, 0, export_delta(mine, 1))
        write(theirs, 3)
        apply_deltas(mine, 1, export_delta(theirs, 0))
        assert read(mine) == read(theirs) == [1, 2, 3]
        if attempt < 2:
            for walk in walks:
                walk.discard()
    for walk in walks:
        walk.commit()
    assert read(here.begin("r1").store("session")) == [1, 2, 3]


def test_what_was_fetched_goes_with_the_level_that_it_was_fetched_into() -> None:
    here, there = Rank(), Rank()
    for request, walk_id in (("r1", 1), ("r2", 4)):
        walk, walk_there = here.begin(request), there.begin(request)
        write(walk.store("session"), walk_id)
        walk.commit()
        ask = (request, "session", 0)
        assert there.memory.to_fetch(*ask, walk_id, of_request=True) is False
        there.memory.apply_fetched(
            *ask, walk_id, True, here.memory.export_committed(request, "s", "session", 1, lost=False)
        )
        walk_there.commit()
        assert there.memory.to_fetch(*ask, walk_id, of_request=True) is None
        for rank in (here, there):
            rank.memory.end_request(request, keep=True)
    there.begin("r3").commit()
    assert there.memory.to_fetch("r3", "session", 0, 4, of_request=False) is None
    assert there.memory.to_fetch("r3", "session", 0, 5, of_request=False) is False


def test_a_request_without_a_session_leaves_nothing_that_it_fetched() -> None:
    here, there = Rank(), Rank()
    walk = here.begin("r1", "r1")
    write(walk.store("session"), 1)
    walk.commit()
    there.begin("r1", "r1")
    deltas = here.memory.export_committed("r1", "r1", "session", 1, lost=False)
    there.memory.apply_fetched("r1", "session", 0, 1, False, deltas)
    there.memory.end_request("r1", keep=True)
    assert there.num_held["session"] == 0


KEEPS = {
    lifetime: KVSpec(1, 1, 1, page_size=4, max_sequence_tokens=40, lifetime=lifetime, kept=("a", ("b", 2)))
    for lifetime in ("request", "session")
}


def keeping_rank() -> Rank:
    rank = Rank()
    rank.pools = {name: KVPool(spec, 12) for name, spec in KEEPS.items()}
    rank.memory = RequestMemory(KEEPS, rank.pools)
    return rank


@pytest.mark.parametrize("part_ends_first", [False, True])
def test_only_the_labels_that_a_cache_keeps_outlive_a_walk(part_ends_first: bool) -> None:
    rank = keeping_rank()
    for walk_id in (1, 2):
        walk = rank.memory.begin("r1", "s", list(KEEPS))
        for name in KEEPS:
            store = walk.store(name)
            assert set(store) == (set() if walk_id == 1 else {"a", ("b", 2)})
            write(store, walk_id)
            for label in (("b", 2), "other", 0, ("b", 1)):
                store.get(label).append(4)
        if part_ends_first:
            walk.release_walk_stores()
            num_held = {1: 2, 2: 4}[walk_id]  # the second copied the partial page that it wrote, until it is committed
            assert rank.num_held == {"request": num_held, "session": num_held}
        walk.commit()
        assert rank.num_held == {"request": 1 + walk_id, "session": 1 + walk_id}
    rank.memory.end_request("r1", keep=True)
    assert rank.num_held == {"request": 0, "session": 3}
    assert read(rank.memory.begin("r2", "s", ["session"]).store("session")) == [1, 2]


def test_a_walk_that_fails_keeps_what_was_kept_before() -> None:
    rank = keeping_rank()
    for request, keep in (("r1", True), ("r2", False)):
        walk = rank.memory.begin(request, "s", ["session"])
        walk.store("session").get("a").truncate(0)
        write(walk.store("session"), int(request[1]))
        walk.store("session").fork("a", "other")
        if keep:
            walk.commit()
        rank.memory.end_request(request, keep)
    assert rank.num_held["session"] == 1
    assert read(rank.memory.begin("r3", "s", ["session"]).store("session")) == [1]


def test_a_label_that_is_not_kept_is_new_on_both_ranks_in_every_walk() -> None:
    here, there = keeping_rank(), keeping_rank()
    for turn in range(3):
        walks = [rank.memory.begin(f"r{turn}", "s", ["session"]) for rank in (here, there)]
        mine, theirs = (walk.store("session") for walk in walks)
        assert "scratch" not in mine
        assert "scratch" not in theirs
        write(mine, turn)
        mine.fork("a", "scratch").append(2)
        deltas = export_delta(mine, 1)
        assert {delta.label for delta in deltas} == {"a", "scratch"}
        apply_deltas(theirs, 0, deltas)
        assert read(theirs) == list(range(turn + 1))
        for walk, rank in zip(walks, (here, there), strict=True):
            walk.commit()
            rank.memory.end_request(f"r{turn}", keep=True)
            assert rank.memory.num_session_page_holds("session") == 1
