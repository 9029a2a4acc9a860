"""Sequences go to another rank whole once, and then only as far as they changed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch

from mstar_rt.cache.moving import (
    RELEASED,
    Delta,
    apply_deltas,
    export_delta,
    export_on_request,
    label_from_list,
    label_to_list,
)
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import Internal, InvalidArgument, PagesExhausted
from mstar_rt.model import KVSpec

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float64: torch.int64, torch.uint8: torch.uint8}


def store_of(num_pages: int = 30, page_size: int = 4, dtype: torch.dtype = torch.float32) -> SequenceStore:
    """An empty store over a pool full of random bits: NaN of all kinds, infinities, both zeros."""
    spec = KVSpec(num_layers=2, num_kv_heads=2, head_dim=3, page_size=page_size, max_sequence_tokens=60)
    pool = KVPool(spec, num_pages, dtype=dtype)
    bits = BITS[dtype]
    limit = torch.iinfo(bits)
    pool.kv.view(bits).copy_(torch.randint(limit.min, limit.max, pool.kv.shape, dtype=bits))
    return SequenceStore(pool)


def tokens(store: SequenceStore, label: Hashable) -> torch.Tensor:
    """Bits of the sequence, gathered token by token."""
    table, pool = store.get(label), store.pool
    rows = [pool.kv[:, :, table.pages[p // pool.page_size], p % pool.page_size] for p in range(table.length)]
    return torch.stack(rows, 2).view(BITS[pool.dtype]) if rows else torch.empty(0)


def same(one: SequenceStore, other: SequenceStore) -> bool:
    return set(one) == set(other) and all(torch.equal(tokens(one, label), tokens(other, label)) for label in one)


def shape_of(deltas: list[Delta]) -> list[tuple[Hashable, int, int]]:
    return [(delta.label, delta.start, delta.num_tokens) for delta in deltas]


def move(
    source: SequenceStore, target: SequenceStore, ranks: tuple[int, int] = (0, 1)
) -> list[tuple[Hashable, int, int]]:
    """From the first rank to the second; returns what travelled."""
    deltas = export_delta(source, ranks[1])
    apply_deltas(target, ranks[0], deltas)
    return shape_of(deltas)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("page_size", "num_pages"), [(4, 30), (3, 50), (7, 9)])
def test_scattered_pages_arrive_bit_for_bit(dtype: torch.dtype, page_size: int, num_pages: int) -> None:
    here, there = store_of(dtype=dtype), store_of(num_pages, page_size, dtype)
    for _ in range(5):
        for label in ("a", ("b", 1), 2):
            here.get(label).append(3)
            there.get("in the way").append(1)
    (delta, *_) = deltas = export_delta(here, 1)
    assert delta.pages is not None
    assert delta.pages.shape == (2, 2, 15, 2, 3)
    assert delta.pages.is_contiguous()
    there.release("in the way")
    apply_deltas(there, 0, deltas)
    assert same(here, there)


def test_only_what_changed_travels() -> None:
    here, there = store_of(), store_of(page_size=5)
    here.get("a").append(10)
    here.get("empty")
    assert move(here, there) == [("a", 0, 10), ("empty", 0, 0)]
    assert move(here, there) == []
    here.get("a").append(3)
    assert move(here, there) == [("a", 10, 3)]
    here.get("a").truncate(6)
    here.get("a").append(7)
    assert move(here, there) == [("a", 6, 7)]
    here.get("a").truncate(2)
    assert move(here, there) == [("a", 2, 0)]
    here.get("a").append(1)
    here.get("a").truncate(2)
    assert move(here, there) == []
    assert same(here, there)


def test_the_answer_starts_where_the_question_ended() -> None:
    here, there = store_of(), store_of(page_size=5)
    here.get("a").append(10)
    move(here, there)
    there.get("a").append(2)
    assert move(there, here, (1, 0)) == [("a", 10, 2)]
    here.get("a").append(1)
    assert move(here, there) == [("a", 12, 1)]
    assert same(here, there)


def test_a_released_sequence_is_released_there_and_comes_again_from_its_start() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(5)
    move(here, there)
    here.release("a")
    assert move(here, there) == [("a", 0, RELEASED)]
    assert "a" not in there
    assert move(here, there) == []
    here.get("a").append(2)
    assert move(here, there) == [("a", 0, 2)]
    here.release("a")
    here.get("a").append(3)
    assert move(here, there) == [("a", 0, 3)]
    here.release("never sent")
    assert same(here, there)
    assert there.pool.allocator.num_held == 1


def test_a_fork_is_new_to_the_peer_and_its_replacement_keeps_what_both_read() -> None:
    here, there = store_of(), store_of()
    here.get("past").append(8)
    move(here, there)
    here.fork("past", "candidate").append(3)
    assert move(here, there) == [("candidate", 0, 11)]
    here.fork("past", "candidate").append(2)
    assert move(here, there) == [("candidate", 8, 2)]
    here.put("candidate", here.pool.new_table())
    here.get("candidate").append(1)
    assert move(here, there) == [("candidate", 0, 1)]
    assert same(here, there)


def test_a_working_copy_knows_what_its_original_knew_and_leaves_it_alone() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    here.get("b").append(1)
    move(here, there)
    here.release("b")
    copy, copy_there = here.fork_all(), there.fork_all()
    assert here.pool.allocator.num_held == 2
    copy.get("a").truncate(5)
    copy.get("a").append(4)
    assert move(copy, copy_there) == [("b", 0, RELEASED), ("a", 5, 4)]
    assert same(copy, copy_there)
    copy.release_all()
    copy_there.release_all()
    assert move(here, there) == [("b", 0, RELEASED)]
    assert same(here, there)


def test_what_is_there_already_stays_so_that_a_third_rank_is_not_sent_it_again() -> None:
    """Round a ring nobody knows at first what the others have; from the second round on only new tokens travel."""
    ranks = [store_of(), store_of(page_size=3), store_of(page_size=5)]
    travelled = []
    for turn in range(7):
        rank, following = turn % 3, (turn + 1) % 3
        ranks[rank].get("a").append(2)
        travelled += move(ranks[rank], ranks[following], (rank, following))
    assert travelled == [("a", 0, 2), ("a", 0, 4), ("a", 0, 6), ("a", 2, 6), ("a", 4, 6), ("a", 6, 6), ("a", 8, 6)]
    assert same(ranks[0], ranks[1])


@pytest.mark.parametrize("kept", [0, 3])
def test_too_few_pages_change_nothing_and_pages_that_truncating_frees_count(kept: int) -> None:
    here, there = store_of(), store_of(num_pages=5)
    here.get("a").append(8)
    here.get("b").append(8)
    move(here, there)
    here.get("a").truncate(kept)
    here.get("a").append(13 - kept)
    deltas = export_delta(here, 1)
    marks = there.marks("a").copy()
    content = tokens(there, "a"), tokens(there, "b")
    there.get("mine").append(4)
    with pytest.raises(PagesExhausted, match=r"need \d cache pages and \d are free or become free"):
        apply_deltas(there, 0, deltas)
    assert torch.equal(tokens(there, "a"), content[0])
    assert torch.equal(tokens(there, "b"), content[1])
    assert (there.pool.allocator.num_held, there.marks("a").first_change(0)) == (5, marks.first_change(0))
    there.release("mine")
    with pytest.raises(PagesExhausted):
        apply_deltas(there, 0, deltas)
    here.release("b")
    apply_deltas(there, 0, [*deltas, *export_delta(here, 1)])
    assert same(here, there)
    assert there.pool.allocator.num_held == 4


def test_a_new_sequence_that_finds_no_pages_is_not_left_behind_empty() -> None:
    here, there = store_of(), store_of(num_pages=1)
    here.get("a").append(8)
    with pytest.raises(PagesExhausted):
        apply_deltas(there, 0, export_delta(here, 1))
    assert list(there) == []


def test_shared_pages_are_not_written_by_what_arrives() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    move(here, there)
    copy = there.fork_all()
    before = tokens(copy, "a")
    here.get("a").truncate(5)
    here.get("a").append(2)
    move(here, there)
    assert same(here, there)
    assert torch.equal(tokens(copy, "a"), before)


def written_there(there: SequenceStore) -> None:
    there.get("a").append(1)


def rewritten_there(there: SequenceStore) -> None:
    there.get("a").truncate(3)
    there.get("a").append(3)


def truncated_there(there: SequenceStore) -> None:
    there.get("a").truncate(3)


def released_there(there: SequenceStore) -> None:
    there.release("a")


def replaced_there(there: SequenceStore) -> None:
    there.get("b").append(9)
    there.fork("b", "a")


@pytest.mark.parametrize("interfere", [written_there, rewritten_there, truncated_there, released_there, replaced_there])
def test_two_ranks_that_write_one_sequence_are_told_so(interfere: object) -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    move(here, there)
    here.get("a").append(2)
    interfere(there)  # type: ignore[operator]
    deltas = export_delta(here, 1)
    held, content = there.pool.allocator.num_held, tokens(there, "a") if "a" in there else None
    with pytest.raises(Internal, match=r"two ranks wrote the sequence 'a': one sends positions 6 to 8"):
        apply_deltas(there, 0, deltas)
    assert there.pool.allocator.num_held == held
    assert content is None or torch.equal(tokens(there, "a"), content)


def test_two_ranks_that_make_one_sequence_or_release_what_the_other_writes_are_told_so() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(2)
    there.get("a").append(2)
    with pytest.raises(Internal, match="two ranks wrote the sequence 'a'"):
        move(here, there)
    there.release("a")
    here, there = store_of(), store_of()
    here.get("a").append(2)
    move(here, there)
    here.release("a")
    there.get("a").append(2)
    with pytest.raises(Internal, match="two ranks wrote the sequence 'a'"):
        move(here, there)


def test_two_ranks_may_write_the_same() -> None:
    """Branches on two ranks that both fork the past under one label, before one of them goes on alone."""
    here, there = store_of(), store_of()
    here.get("past").append(6)
    move(here, there)
    here.fork("past", "branch")
    there.fork("past", "branch")
    here.get("branch").append(1)
    assert move(here, there) == [("branch", 0, 7)]
    assert same(here, there)


def test_a_label_that_is_not_there_cannot_continue() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(2)
    (delta,) = export_delta(here, 1)
    with pytest.raises(Internal, match="'a'"):
        apply_deltas(there, 0, [delta._replace(start=4)])


def test_other_shapes_and_dtypes_are_refused() -> None:
    here, there = store_of(), store_of(dtype=torch.bfloat16)
    here.get("a").append(2)
    (delta,) = export_delta(here, 1)
    with pytest.raises(
        Internal, match=r"came from another rank as torch.float32 .* expected torch.bfloat16 \[2, 2, 2, 2, 3\]"
    ):
        apply_deltas(there, 0, [delta])
    with pytest.raises(Internal, match="as nothing"):
        apply_deltas(there, 0, [delta._replace(pages=None)])
    assert list(there) == []


def test_a_sequence_longer_than_declared_is_refused() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(50)
    move(here, there)
    with pytest.raises(InvalidArgument, match="61 tokens is too long"):
        apply_deltas(there, 0, [Delta("a", 50, 11, torch.zeros(2, 2, 11, 2, 3), (1, *there.marks("a").writes[-1]))])
    assert there.get("a").length == 50


def test_an_answer_that_was_lost_is_made_up_for() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    here.get("gone").append(1)
    apply_deltas(there, 0, export_on_request(here, 1, lost=False))
    here.get("a").truncate(5)
    here.get("a").append(4)
    here.get("new").append(1)
    here.release("gone")
    changes = [("gone", 0, RELEASED), ("a", 5, 4), ("new", 0, 1)]
    assert shape_of(export_on_request(here, 1, lost=False)) == changes
    assert shape_of(export_on_request(here, 1, lost=True)) == changes
    here.get("a").truncate(4)
    again = export_on_request(here, 1, lost=True)
    assert shape_of(again) == [("gone", 0, RELEASED), ("a", 4, 0), ("new", 0, 1)]
    apply_deltas(there, 0, again)
    assert same(here, there)
    assert export_on_request(here, 1, lost=False) == []
    assert export_on_request(here, 1, lost=True) == []


@pytest.mark.parametrize("label", ["a", 7, "", (), ("a",), ("candidate", 3), "tuple", (1, 2, "x")])
def test_labels_survive_a_message(label: Hashable) -> None:
    assert label_from_list(label_to_list(label)) == label


@pytest.mark.parametrize("label", [1.5, None, ("a", None), (("nested", 1), 2)])
def test_other_labels_are_refused(label: Hashable) -> None:
    with pytest.raises(Internal, match="must be a string, an integer or a flat tuple"):
        label_to_list(label)


def released_and_made_again(store: SequenceStore) -> None:
    store.release("a")
    store.get("a").append(6)


def grown(store: SequenceStore) -> None:
    store.get("a").append(2)


def shrunk(store: SequenceStore) -> None:
    store.get("a").truncate(store.get("a").length // 2)


def emptied(store: SequenceStore) -> None:
    store.get("a").truncate(0)


def released(store: SequenceStore) -> None:
    store.release("a")


@pytest.mark.parametrize("first", [released_and_made_again, grown, shrunk, emptied, released])
@pytest.mark.parametrize("then", [released_and_made_again, grown, shrunk, emptied, released])
@pytest.mark.parametrize("length", [6, 0])
def test_what_a_third_rank_changed_between_two_transfers_reaches_everyone(
    first: object, then: object, length: int
) -> None:
    """Rank 0 sends to both; rank 1 changes, tells 2, changes again, tells 0; then 0 brings 2 up to date."""
    ranks = [store_of(), store_of(page_size=3), store_of(page_size=5)]
    ranks[0].get("a").append(length)
    move(ranks[0], ranks[2], (0, 2))
    move(ranks[0], ranks[1], (0, 1))
    for change, told in ((first, 2), (then, 0)):
        ranks[1].get("a").append(3)
        ranks[1].get("a").truncate(min(ranks[1].get("a").length, length))
        change(ranks[1])  # type: ignore[operator]
        move(ranks[1], ranks[told], (1, told))
    move(ranks[0], ranks[2], (0, 2))
    assert same(ranks[0], ranks[1])
    assert same(ranks[0], ranks[2])
    for source in range(3):  # and then there is peace
        for target in range(3):
            if source != target:
                move(ranks[source], ranks[target], (source, target))
    for source in range(3):
        for target in range(3):
            if source != target:
                assert move(ranks[source], ranks[target], (source, target)) == []


def test_an_answer_that_was_followed_by_another_transfer_is_not_lost() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    apply_deltas(there, 0, export_on_request(here, 1, lost=False))
    here.get("a").append(1)
    move(here, there)
    assert export_on_request(here, 1, lost=True) == []


def test_what_a_working_copy_inherited_is_known_to_who_got_it_from_the_original() -> None:
    here, there = store_of(), store_of()
    here.get("a").append(6)
    copy = here.fork_all()
    move(here, there)
    there.get("a").append(2)
    assert move(there, copy, (1, 0)) == [("a", 6, 2)]
    assert same(copy, there)


def test_the_copy_of_a_shared_last_page_counts_before_anything_is_taken() -> None:
    here, there = store_of(), store_of(num_pages=3)
    here.get("a").append(6)
    move(here, there)
    shared = there.fork_all()
    here.get("a").append(1)
    here.get("b").append(1)
    deltas = sorted(export_delta(here, 1), key=lambda delta: delta.start)
    with pytest.raises(PagesExhausted, match="2 sequences from another rank need 2 cache pages and 1 are free"):
        apply_deltas(there, 0, deltas)
    assert (list(there), there.get("a").length, there.pool.allocator.num_held) == (["a"], 6, 2)
    shared.release_all()
    apply_deltas(there, 0, deltas)
    assert same(here, there)
