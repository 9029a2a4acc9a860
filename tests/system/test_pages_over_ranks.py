"""More is asked than there are pages, by walks whose pages lie on two ranks: all finish, or are refused, in bounded time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from composite_serving import Values, ask, ask_in, assert_equal, image
from serving import assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import MstarError, ResourceExhausted

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

NUM_PAGES = 32
STEPS = 56
PAGES_OF_ONE = (24 + STEPS) // 4
DEMAND = 3 * NUM_PAGES


def pages(client: Client, kind: str, rank: int) -> float:
    return client.stats().processes[f"worker/{rank}"][f"pages_{kind}/small/text"]


def test_three_times_the_pages_are_asked_for(composite_client: Client) -> None:
    for rank in (1, 2):
        assert pages(composite_client, "free", rank) == NUM_PAGES
    num_requests = -(-DEMAND // PAGES_OF_ONE) + 1
    tensors = [{"image": image(number, 24)} for number in range(num_requests)]
    alone = [ask(composite_client, "small", "generate", given, steps=STEPS) for given in tensors]

    def run(given: Any) -> Values | MstarError:
        try:
            return ask(composite_client, "small", "generate", given, steps=STEPS, timeout_s=60)
        except ResourceExhausted as error:
            return error

    with ThreadPoolExecutor(num_requests) as pool:
        answers = list(pool.map(run, tensors))
    results = [(got, want) for got, want in zip(answers, alone, strict=True) if isinstance(got, dict)]
    for got, want in results:
        assert_equal(got, want, 1e-5)
    assert len(results) == num_requests, answers
    assert_nothing_is_held(composite_client)
    for rank in (1, 2):
        assert pages(composite_client, "free", rank) == NUM_PAGES


def test_branches_on_two_ranks_that_wait_for_pages_take_turns(composite_client: Client) -> None:
    """A fork of 24 tokens shares its pages; eight requests of six pages each on two ranks."""
    tensors = [{"image": image(number, 24)} for number in range(8)]
    alone = [ask(composite_client, "small", "denoise", given, steps=12, seed=1) for given in tensors]
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(ask, composite_client, "small", "denoise", given, steps=12, seed=1, timeout_s=60)
            for given in tensors
        ]
        for call, want in zip(asked, alone, strict=True):
            assert_equal(call.result(), want, 1e-5)
    assert_nothing_is_held(composite_client)


def test_a_session_that_outgrows_its_cache_is_told_so_and_lives(composite_client: Client) -> None:
    with composite_client.task_session("small") as session:
        for turn in range(5):
            ask_in(session, "listen", {"image": image(turn, 24)})
        with pytest.raises(MstarError, match="128"):
            ask_in(session, "listen", {"image": image(5, 24)})
        ask_in(session, "listen", {"image": image(6, 8)})
    assert_nothing_is_held(composite_client)


def test_a_page_holder_in_a_session_makes_others_wait_or_be_refused(composite_client: Client) -> None:
    """The first session holds 30 of 32 pages for as long as it lives, so the second cannot have six."""
    with composite_client.task_session("small") as first, composite_client.task_session("small") as second:
        for turn in range(5):
            ask_in(first, "listen", {"image": image(turn, 24)})
        with pytest.raises(ResourceExhausted, match="pages"):
            ask_in(second, "listen", {"image": image(9, 24)})
        first.close()
        assert_equal(
            ask_in(second, "listen", {"image": image(9, 24)}),
            ask(composite_client, "small", "listen", {"image": image(9, 24)}),
        )
    assert_nothing_is_held(composite_client)
