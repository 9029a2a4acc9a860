"""Pages are given out, counted and taken back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.cache import PageAllocator
from mstar_rt.errors import PagesExhausted, ResourceExhausted


def test_a_new_page_has_one_holder_and_is_free_again_when_the_last_lets_go() -> None:
    allocator = PageAllocator(4)
    (page,) = allocator.allocate(1)
    allocator.share(page)
    allocator.release(page)
    assert (allocator.ref_count(page), allocator.num_free, allocator.num_held) == (1, 3, 1)
    allocator.release(page)
    assert (allocator.ref_count(page), allocator.num_free, allocator.num_held) == (0, 4, 0)


def test_exhaustion_takes_nothing_and_says_the_numbers() -> None:
    allocator = PageAllocator(5)
    allocator.allocate(2)
    with pytest.raises(PagesExhausted, match=r"4 cache pages were asked for and 3 of 5 are free") as error:
        allocator.allocate(4)
    assert isinstance(error.value, ResourceExhausted)
    assert error.value.retryable
    assert allocator.num_free == 3
    assert len(set(allocator.allocate(3))) == 3


@pytest.mark.parametrize("misuse", ["release", "share"])
def test_a_free_page_can_be_neither_shared_nor_released(misuse: str) -> None:
    allocator = PageAllocator(2)
    with pytest.raises(AssertionError, match="page 1"):
        getattr(allocator, misuse)(1)


def test_sequences_start_at_empty_extents_and_grow_in_place() -> None:
    allocator = PageAllocator(12, extent_pages=4)
    tails = [allocator.allocate(1)[0] for _ in range(3)]
    assert tails == [0, 4, 8]
    for _ in range(3):
        grown = [allocator.allocate(1, after=tail)[0] for tail in tails]
        assert grown == [tail + 1 for tail in tails]
        tails = grown
    assert allocator.num_free == 0


def test_a_released_extent_is_the_start_of_the_next_sequence() -> None:
    allocator = PageAllocator(9, extent_pages=3)
    first, second, third = (allocator.allocate(2) for _ in range(3))
    for page in second:
        allocator.release(page)
    assert allocator.allocate(1) == [3]
    # No extent is empty now: any free page serves, also those behind a sequence and in the middle of an extent.
    assert sorted(allocator.allocate(4)) == [2, 4, 5, 8]
    assert allocator.num_free == 0
    assert first == [0, 1]
    assert third == [6, 7]


def test_what_is_remembered_of_empty_extents_does_not_grow() -> None:
    allocator = PageAllocator(12, extent_pages=3)
    for _ in range(20):
        pages = allocator.allocate(9)
        for page in pages:
            allocator.release(page)
    assert len(allocator._empty_extents) <= 4


@settings(max_examples=150, deadline=None)
@given(
    num_pages=st.integers(1, 40),
    extent_pages=st.integers(1, 50),
    commands=st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 60)), max_size=80),
)
def test_free_and_held_always_add_up(num_pages: int, extent_pages: int, commands: list[tuple[str, int]]) -> None:
    allocator = PageAllocator(num_pages, extent_pages)
    holds: list[int] = []
    for command, number in commands:
        if command == "take":
            wanted = number % 7
            after = holds[-1] if holds and number % 2 else None
            if wanted > num_pages - len(set(holds)):
                with pytest.raises(PagesExhausted):
                    allocator.allocate(wanted, after)
            else:
                pages = allocator.allocate(wanted, after)
                assert len(set(pages)) == wanted
                assert not set(pages) & set(holds)
                holds += pages
        elif holds and command == "share":
            page = holds[number % len(holds)]
            allocator.share(page)
            holds.append(page)
        elif holds:
            allocator.release(holds.pop(number % len(holds)))
        assert allocator.num_held == len(set(holds))
        assert allocator.num_free + allocator.num_held == num_pages
        assert [allocator.ref_count(page) for page in range(num_pages)] == [
            holds.count(page) for page in range(num_pages)
        ]
