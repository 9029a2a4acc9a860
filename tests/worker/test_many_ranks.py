"""Walks over several ranks, with every party driven turn by turn in random order: equal to one rank, whatever happens."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.many_ranks import LEAST_BYTES, PLACEMENTS, ManyRanks, same

pytestmark = pytest.mark.usefixtures("through_shared_memory")

TALK: dict[str, Any] = {"temperature": 1.0}
TASKS: dict[str, dict[str, Any]] = {
    "encode": {},
    "generate": TALK,
    "speak": TALK,
    "speak_offline": TALK,
    "denoise": {},
    "fill_and_tell": TALK,
}
SPREAD = [name for name in PLACEMENTS if name != "one rank"]


def params_of(task: str, steps: int) -> dict[str, Any]:
    return {**TASKS[task], **({} if task == "encode" else {"steps": steps})}


@functools.cache
def alone(task: str, rows: int, steps: int, request: str) -> dict[str, list[np.ndarray]]:
    """What the request gives on one rank with nobody beside it."""
    ranks = ManyRanks("one rank")
    ranks.submit(request, task, rows, **params_of(task, steps))
    ranks.run([request])
    ranks.assert_clean()
    ranks.finished(request)
    return ranks.values(request)


requests_drawn = st.lists(
    st.tuples(st.sampled_from(sorted(TASKS)), st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(st.sampled_from(sorted(PLACEMENTS)), requests_drawn, st.integers(0, 2**32), st.sampled_from([1, 2, 16]))
def test_any_placement_and_any_company_gives_what_one_request_alone_on_one_rank_gives(
    placement: str, drawn: list[tuple[str, int, int]], seed: int, max_batch: int
) -> None:
    ranks = ManyRanks(placement, seed, max_batch=max_batch, check_outputs=True)
    for index, (task, rows, steps) in enumerate(drawn):
        ranks.submit(f"r{index}", task, rows, **params_of(task, steps))
        for _ in range(ranks.rng.randrange(12)):
            ranks.turn()
    names = [f"r{index}" for index in range(len(drawn))]
    ranks.run(names)
    for name, (task, rows, steps) in zip(names, drawn, strict=True):
        end = ranks.finished(name)
        assert end.num_emitted == len(ranks.emitted[name])
        same(ranks.values(name), alone(task, rows, steps, name))
    ranks.assert_clean()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_coalesced_at_mixed_iterations_equals_sequential(placement: str) -> None:
    together, one_by_one = ManyRanks(placement, 1), ManyRanks(placement, 2)
    wanted = {f"r{index}": ("generate" if index % 3 else "denoise", 1 + index % 4, 3 + index % 5) for index in range(9)}
    for name, (task, rows, steps) in wanted.items():
        together.submit(name, task, rows, **params_of(task, steps))
        together.round()
        together.round()
    together.run(list(wanted))
    for name, (task, rows, steps) in wanted.items():
        one_by_one.submit(name, task, rows, **params_of(task, steps))
        one_by_one.run([name])
        same(together.values(name), one_by_one.values(name))
    batched = sum(time.batched_with for name in wanted for time in together.finished(name).node_times.values())
    assert batched > 20, "the requests were meant to meet"
    together.assert_clean()
    one_by_one.assert_clean()


def test_the_seed_is_an_option_or_else_the_requests_own() -> None:
    ranks = ManyRanks("prefill and decode apart")
    ranks.submit("a", "generate", steps=8, temperature=9.0, seed=1)
    ranks.submit("b", "generate", steps=8, temperature=9.0, seed=2)
    ranks.submit("ab", "generate", steps=8, temperature=9.0, seed=1)
    ranks.run(["a", "b", "ab"])
    tokens = {name: [int(token[0]) for token in ranks.values(name)["next_token"]] for name in ("a", "b", "ab")}
    assert tokens["a"] != tokens["b"]


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("task", ["generate", "speak", "denoise", "fill_and_tell"])
def test_cancel_at_every_turn_leaves_nothing_and_harms_nobody(placement: str, task: str) -> None:
    num_before, was_over = 0, False
    while not was_over:
        ranks = ManyRanks(placement, num_before)
        ranks.submit("gone", task, **params_of(task, 4))
        ranks.submit("stays", task, **params_of(task, 4))
        for _ in range(num_before):
            ranks.turn()
        was_over = "gone" in ranks.ends
        ranks.cancel("gone")
        ranks.run(["gone", "stays"])
        ranks.assert_clean()
        same(ranks.values("stays"), alone(task, 3, 4, "stays"))
        num_before += 1 if placement == "all apart" else 3
    assert num_before > 10


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("task", ["generate", "speak", "denoise", "fill_and_tell"])
def test_no_rank_begins_a_step_of_a_request_that_it_knows_to_be_cancelled(placement: str, task: str) -> None:
    num_before, num_ran_before, was_over = 0, set(), False
    while not was_over:
        ranks = ManyRanks(placement, num_before)
        ranks.submit("gone", task, **params_of(task, 4))
        for _ in range(num_before):
            ranks.turn()
        was_over = "gone" in ranks.ends
        ranks.cancel("gone")
        ranks._conduct()
        ran_before = [worker.stats()["units_total"] for worker in ranks.workers.values()]
        ranks.run(["gone"])
        ranks.assert_clean()
        assert [worker.stats()["units_total"] for worker in ranks.workers.values()] == ran_before
        num_ran_before.add(sum(ran_before))
        num_before += 1 if placement == "one rank" else 2
    assert len(num_ran_before) > 3, "it was meant to be met at several steps"


@settings(max_examples=65)
@given(st.sampled_from(SPREAD), requests_drawn, st.integers(0, 2**32), st.sampled_from([1 << 24, LEAST_BYTES]))
def test_walks_that_the_conductor_has_begin_again_give_the_same_once(
    placement: str, drawn: list[tuple[str, int, int]], seed: int, arena_bytes: int
) -> None:
    """With little memory, also while they wait for room."""
    ranks = ManyRanks(placement, seed, arena_bytes=arena_bytes)
    names = [f"r{index}" for index in range(len(drawn))]
    for name, (task, rows, steps) in zip(names, drawn, strict=True):
        ranks.submit(name, task, rows, **params_of(task, steps))
    for _ in range(8 * len(names)):
        for _ in range(ranks.rng.randrange(6)):
            ranks.turn()
        ranks.make_one_yield()
    ranks.run(names)
    for name, (task, rows, steps) in zip(names, drawn, strict=True):
        ranks.finished(name)
        same(ranks.values(name), alone(task, rows, steps, name))
    ranks.assert_clean()


@settings(max_examples=15)
@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(5, 9), st.integers(0, 2**32), st.booleans())
def test_three_times_more_demand_than_pages_ends_in_bounded_turns(
    placement: str, num_pages: int, seed: int, two_walks: bool
) -> None:
    ranks = ManyRanks(placement, seed, pages=num_pages)
    wanted = {f"r{index}": (1 + index % 4, 9 + index % 4) for index in range(2 * num_pages)}
    for index, (name, (rows, steps)) in enumerate(wanted.items()):
        task = "fill_and_tell" if two_walks and index % 2 else "generate"
        ranks.submit(name, task, rows, **params_of(task, steps))
    ranks.run(list(wanted), limit=8000)
    for index, (name, (rows, steps)) in enumerate(wanted.items()):
        if two_walks and name in ranks.refused():
            assert ranks.failed(name).code == "RESOURCE_EXHAUSTED"
            continue
        ranks.finished(name)
        task = "fill_and_tell" if two_walks and index % 2 else "generate"
        same(ranks.values(name), alone(task, rows, steps, name))
    assert len(ranks.finished_names()) >= len(wanted) // 2
    ranks.assert_clean()


def test_what_can_never_fit_is_refused_on_several_ranks() -> None:
    ranks = ManyRanks("prefill and decode apart", pages=2)
    ranks.submit("big", "generate", 3, **params_of("generate", 30))
    ranks.submit("small", "generate", 3, **params_of("generate", 3))
    ranks.run(["big", "small"])
    assert ranks.failed("big").code == "INVALID_ARGUMENT"
    assert "even alone" in ranks.failed("big").message
    ranks.finished("small")
    ranks.assert_clean()


def test_who_meets_pages_that_sessions_keep_is_told_to_close_some() -> None:
    ranks = ManyRanks("one rank")
    allocator = ranks.loaded[0].pools["history"].allocator
    taken = allocator.allocate(allocator.num_free - 3)
    for session in ("s0", "s1", "s2", "s3"):
        ranks.open_session(session)
        ranks.submit(f"of {session}", "listen", session=session, rows=4)
        ranks.run([f"of {session}"])
    assert ranks.refused() == ["of s3"]
    assert "beside the 3 that open sessions keep" in ranks.failed("of s3").message
    assert "close sessions that are not needed" in ranks.failed("of s3").message
    ranks.close_session("s0")
    ranks.submit("after", "listen", session="s3", rows=4)
    ranks.run(["after"])
    ranks.finished("after")
    for session in ("s1", "s2", "s3"):
        ranks.close_session(session)
    for page in taken:
        allocator.release(page)
    ranks.assert_clean()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", "failed (RuntimeError)"),
        ("own_error", "refuses this"),
        ("out_of_memory", "failed (MemoryError)"),
        ("wrong_outputs", "it declares"),
        ("wrong_shape", "has shape"),
        ("nan", "holds NaN"),
        ("too_few", "0 results for 1 calls"),
        ("bad_key", "failed (RuntimeError)"),
    ],
)
@pytest.mark.parametrize("node", ["encode", "cond", "combine"])
def test_a_node_that_misbehaves_fails_its_request_alone(placement: str, fault: str, sentence: str, node: str) -> None:
    ranks = ManyRanks(placement, 3, check_outputs=True)
    bad = {"fault": fault, "fault_node": node, "fault_at": 1 if node != "encode" else -1}
    for name in ("good1", "bad", "good2"):
        ranks.submit(name, "denoise", steps=3, **(bad if name == "bad" else {}))
    ranks.run(["good1", "bad", "good2"])
    assert sentence in ranks.failed("bad").message
    assert "secret" not in ranks.failed("bad").message
    for name in ("good1", "good2"):
        ranks.finished(name)
        same(ranks.values(name), alone("denoise", 3, 3, name))
    ranks.assert_clean()


def test_without_check_outputs_nan_is_not_looked_for() -> None:
    ranks = ManyRanks("one rank")
    ranks.submit("r", "denoise", steps=1, fault="nan", fault_node="combine")
    ranks.run(["r"])
    assert np.isnan(ranks.values("r")["denoised"][0]).all()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("seed", range(3))
def test_sessions_carry_tensors_and_sequences_between_ranks_and_requests(placement: str, seed: int) -> None:
    ranks, one = ManyRanks(placement, seed), ManyRanks("one rank")
    for deployment in (ranks, one):
        deployment.open_session("s")
        for name, task, params in (
            ("look", "look", {}),
            ("answer", "answer", params_of("generate", 4)),
            ("hear1", "listen", {}),
            ("hear2", "listen", {"fault": "raise", "fault_node": "listen"}),
            ("hear3", "listen", {}),
            ("again", "answer", params_of("generate", 2)),
        ):
            deployment.submit(name, task, session="s", **params)
            deployment.run([name])
        assert deployment.failed("hear2").code == "INTERNAL"
    for name in ("answer", "hear1", "hear3", "again"):
        ranks.finished(name)
        same(ranks.values(name), one.values(name))
    ranks.close_session("s")
    ranks.assert_clean()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_closing_a_session_at_any_turn_frees_it(placement: str) -> None:
    for num_before in range(0, 40, 2):
        ranks = ManyRanks(placement, num_before)
        ranks.open_session("s")
        ranks.submit("look", "look", session="s")
        ranks.submit("hear", "listen", session="s")
        ranks.submit("answer", "fill_and_tell", session="s", steps=3)
        for _ in range(num_before):
            ranks.turn()
        ranks.close_session("s")
        ranks.run(["look", "hear", "answer"])
        ranks.assert_clean()


@pytest.mark.parametrize("placement", SPREAD)
@pytest.mark.parametrize("deadline_ns", [1, 10, 30, 60, 100])
def test_a_deadline_ends_a_walk_on_all_its_ranks(placement: str, deadline_ns: int) -> None:
    ranks = ManyRanks(placement, deadline_ns)
    ranks.submit("r", "generate", deadline_ns=deadline_ns, **params_of("generate", 6))
    for _ in range(200):
        ranks.clock.advance_ns(1)
        ranks.turn()
    ranks.run(["r"])
    if deadline_ns < 30 or ranks.refused():
        assert ranks.failed("r").code == "DEADLINE_EXCEEDED"
        assert len(ranks.values("r").get("next_token", ())) < 6
    else:
        same(ranks.values("r"), alone("generate", 3, 6, "r"))
    ranks.assert_clean()


@pytest.mark.parametrize("placement", SPREAD)
@pytest.mark.parametrize("num_before", range(0, 60, 5))
@pytest.mark.parametrize("arena_bytes", [1 << 20, LEAST_BYTES])
def test_a_rank_that_dies_takes_its_requests_and_leaves_nothing_on_the_others(
    placement: str, num_before: int, arena_bytes: int
) -> None:
    """With little memory, others wait to send to it."""
    ranks = ManyRanks(placement, num_before, arena_bytes=arena_bytes)
    names = [f"r{index}" for index in range(4)]
    for index, name in enumerate(names):
        ranks.submit(name, "speak" if index % 2 else "fill_and_tell", **params_of("speak", 4))
    for _ in range(num_before):
        ranks.turn()
    ranks.kill(1)
    ranks.run(names)
    ranks.restart(1)
    ranks.assert_clean(after_a_death=True)
    ranks.submit("after", "speak", **params_of("speak", 3))
    ranks.run(["after"])
    same(ranks.values("after"), alone("speak", 3, 3, "after"))
    ranks.assert_clean(after_a_death=True)


def test_a_rank_that_can_only_wait_waits_for_messages() -> None:
    ranks = ManyRanks("prefill and decode apart", 5, pages=4)
    for index in range(4):
        ranks.submit(f"r{index}", "generate", 3, **params_of("generate", 9))
    num_seen = 0
    for _ in range(400):
        ranks.turn()
        for worker in ranks.workers.values():
            if worker._is_stuck and not len(worker._scheduler) and not worker._table.pages_came:
                assert worker._wait_s(1.0) == 1.0
                num_seen += 1
    assert num_seen, "the requests were meant to meet a shortage that another rank has to end"
    ranks.run([f"r{index}" for index in range(4)])


def test_a_session_whose_tensor_is_gone_fails_what_reads_it() -> None:
    ranks = ManyRanks("all apart")
    ranks.open_session("s")
    ranks.submit("look", "look", session="s")
    ranks.run(["look"])
    ranks.workers[0]._table.scopes.release("s")
    ranks.submit("answer", "answer", session="s", **params_of("generate", 2))
    ranks.run(["answer"])
    assert ranks.failed("answer").code in ("UNAVAILABLE", "FAILED_PRECONDITION")
    ranks.close_session("s")
    ranks.assert_clean()
