"""The CPU backend equals dense float64 attention for any batch and any history of its sequences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mstar_rt.errors import PagesExhausted
from mstar_rt.nn import attention_dense
from mstar_rt.nn.attention import AttentionStep, StepKind, select_backend
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_pages import EvenTokens, ScatteredTokens, StoredTokens
from tests.nn.dense_reference import TokenSource
from tests.nn.paged_twin import Twin, histories

CAUSAL, BLOCK, TRANSIENT = StepKind.CAUSAL_APPEND, StepKind.BLOCK_APPEND, StepKind.TRANSIENT_BLOCK


@pytest.fixture(autouse=True)
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_dense, "MIN_SCORES", attention_dense.MIN_SCORES)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=histories(),
    page_size=st.integers(1, 6),
    extent_pages=st.sampled_from([1, 3, 16]),
    num_kv_heads=st.integers(1, 2),
    q_heads_per_kv_head=st.integers(1, 3),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    min_scores=st.sampled_from([0, attention_dense.MIN_SCORES]),
)
def test_any_history_equals_dense_attention(changes: list, dtype: torch.dtype, min_scores: int, **shape: int) -> None:
    """`min_scores` sends bfloat16 through both of its ways."""
    attention_dense.MIN_SCORES = min_scores
    twin = Twin(num_pages=600, dtype=dtype, **shape)
    twin.live_through(changes)
    for table in twin.tables:
        table.release()
    assert twin.pool.allocator.num_free == twin.pool.num_pages


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    block=st.integers(1, 6),
    num_sequences=st.integers(1, 9),
    kinds=st.lists(st.sampled_from(list(StepKind)), min_size=1, max_size=5),
    extent_pages=st.sampled_from([1, 2, 8]),
    dtype=st.sampled_from([torch.float64, torch.bfloat16]),
)
def test_uniform_batches_that_fill_whole_pages(
    block: int, num_sequences: int, kinds: list[StepKind], extent_pages: int, dtype: torch.dtype
) -> None:
    twin = Twin(page_size=block, num_pages=80, extent_pages=extent_pages, dtype=dtype)
    members = [twin.create() for _ in range(num_sequences)]
    for kind in kinds:
        twin.step([(index, block, kind) for index in members])


def tokens_of(twin: Twin, batch: list[tuple[int, int, StepKind]]) -> list[StoredTokens]:
    plan = twin.backend.plan([AttentionStep(twin.tables[i], n, kind) for i, n, kind in batch])
    found = [group.tokens for group in plan._groups]
    plan.rollback()
    return found


def test_candidates_that_grow_together_are_read_in_place() -> None:
    twin = Twin(num_pages=40, extent_pages=5)
    members = [twin.create() for _ in range(8)]
    for _ in range(4):
        twin.step([(index, 4, BLOCK) for index in members])
    (tokens,) = tokens_of(twin, [(index, 4, BLOCK) for index in members])
    assert isinstance(tokens, EvenTokens)
    assert tokens.read(0)[0].data_ptr() == twin.pool.keys(0).data_ptr()


def test_two_requests_at_different_lengths_make_two_groups() -> None:
    twin = Twin(num_pages=60, extent_pages=5)
    ahead = [twin.create() for _ in range(4)]
    twin.step([(index, 4, BLOCK) for index in ahead])
    behind = [twin.create() for _ in range(4)]
    mixed = [(index, 4, BLOCK) for pair in zip(ahead, behind, strict=True) for index in pair]
    assert all(isinstance(tokens, EvenTokens) for tokens in tokens_of(twin, mixed))
    assert len(tokens_of(twin, mixed)) == 2
    twin.step(mixed)
    twin.step(mixed)


def test_candidates_that_share_a_context_are_copied_together_and_it_is_stored_once() -> None:
    twin = Twin(num_pages=40, extent_pages=5)
    context = twin.create()
    twin.step([(context, 4, BLOCK)])
    members = [twin.fork(context) for _ in range(6)]
    assert twin.pool.allocator.num_held == 1
    for _ in range(2):
        twin.step([(index, 4, BLOCK) for index in members])
    (tokens,) = tokens_of(twin, [(index, 4, BLOCK) for index in members])
    assert isinstance(tokens, ScatteredTokens)
    assert twin.pool.allocator.num_held == 1 + 6 * 2


def test_transient_blocks_see_the_sequence_as_it_was_and_leave_nothing() -> None:
    twin = Twin(num_pages=8)
    index = twin.create()
    twin.step([(index, 6, CAUSAL)])
    stored = twin.pool.kv.clone()
    held = twin.pool.allocator.num_held
    twin.step([(index, 5, TRANSIENT), (index, 3, TRANSIENT)])
    assert torch.equal(twin.pool.kv.nan_to_num(7.0), stored.nan_to_num(7.0))
    assert twin.pool.allocator.num_held == held
    twin.step([(index, 5, TRANSIENT), (index, 3, CAUSAL), (index, 2, TRANSIENT)])
    assert twin.tables[index].length == 9


def test_histories_of_transient_blocks_leave_out_what_the_batch_appends() -> None:
    twin = Twin(num_pages=20)
    first, second = twin.create(), twin.create()
    twin.step([(first, 4, BLOCK), (second, 4, BLOCK)])
    twin.step([(first, 2, TRANSIENT), (second, 2, TRANSIENT), (first, 6, CAUSAL)])


def test_sequences_may_stand_in_a_batch_in_any_order() -> None:
    twin = Twin(num_pages=40, extent_pages=4)
    members = [twin.create() for _ in range(6)]
    for order in (members, members[::-1], [0, 1, 2, 5, 3, 4], [0, 2, 1, 5, 3, 4]):
        twin.step([(index, 4, BLOCK) for index in order])
    twin.step([(0, 2, TRANSIENT), (0, 2, TRANSIENT), (1, 2, TRANSIENT)])


def test_a_block_after_truncation_overwrites_what_was_forgotten() -> None:
    twin = Twin()
    index = twin.create()
    twin.step([(index, 10, BLOCK)])
    twin.truncate(index, 5)
    twin.step([(index, 10, CAUSAL)])
    fork = twin.fork(index)
    twin.truncate(fork, 6)
    twin.step([(index, 1, CAUSAL), (fork, 3, BLOCK)])
    twin.step([(fork, 1, CAUSAL), (index, 3, BLOCK)])


def test_exhaustion_changes_nothing_and_the_batch_runs_when_pages_return() -> None:
    twin = Twin(num_pages=5)
    first, second, third = (twin.create() for _ in range(3))
    twin.step([(first, 6, BLOCK), (second, 4, BLOCK)])
    before = [(table.length, list(table.pages)) for table in twin.tables]
    stored = twin.pool.kv.clone()
    batch = [(first, 2, CAUSAL), (second, 5, CAUSAL), (third, 1, BLOCK)]
    with pytest.raises(PagesExhausted, match="a batch of 3 sequences needs 3 cache pages and 2 of 5 are free"):
        twin.step(batch)
    assert [(table.length, list(table.pages)) for table in twin.tables] == before
    assert torch.equal(twin.pool.kv.nan_to_num(7.0), stored.nan_to_num(7.0))
    twin.step([(first, 2, CAUSAL), (second, 4, CAUSAL), (third, 1, BLOCK)])


def test_rollback_restores_lengths_and_pages_and_the_step_can_be_planned_again() -> None:
    twin = Twin(num_pages=12)
    first, second = twin.create(), twin.create()
    twin.step([(first, 6, BLOCK), (second, 3, CAUSAL)])
    before = [(table.length, list(table.pages)) for table in twin.tables]
    held = twin.pool.allocator.num_held
    batch = [(first, 5, CAUSAL), (second, 2, BLOCK)]
    plan = twin.backend.plan([AttentionStep(twin.tables[i], n, kind) for i, n, kind in batch])
    plan.run(0, *twin.tokens.draw(7))
    plan.rollback()
    plan.rollback()
    assert [(table.length, list(table.pages)) for table in twin.tables] == before
    assert twin.pool.allocator.num_held == held
    twin.step(batch)


def test_rollback_after_a_request_was_released_leaves_the_others_right() -> None:
    twin = Twin(num_pages=12)
    first, second = twin.create(), twin.create()
    plan = twin.backend.plan([AttentionStep(table, 6, BLOCK) for table in twin.tables])
    twin.tables[first].release()
    plan.rollback()
    assert twin.tables[second].length == 0
    assert twin.pool.allocator.num_held == 0


def test_results_do_not_depend_on_the_company_in_a_batch() -> None:
    alone, together = Twin(dtype=torch.float32), Twin(dtype=torch.float32)
    plans = []
    for twin, num_sequences in ((alone, 1), (together, 5)):
        members = [twin.create() for _ in range(num_sequences)]
        q, k, v = TokenSource(2, 2, 8, torch.float32, seed=3).draw(4)
        for _ in range(3):
            plan = twin.backend.plan([AttentionStep(twin.tables[i], 4, BLOCK) for i in members])
            out = plan.run(0, *(x.repeat(num_sequences, 1, 1) for x in (q, k, v)))
        plans.append(out.view(num_sequences, 4, 2, 8))
    torch.testing.assert_close(plans[1], plans[0].expand(5, -1, -1, -1), rtol=0, atol=2e-6)


def test_wrong_tensors_are_our_bug() -> None:
    twin = Twin(dtype=torch.float32)
    index = twin.create()
    q, k, v = twin.tokens.draw(3)
    plan = twin.backend.plan([AttentionStep(twin.tables[index], 3, BLOCK)])
    with pytest.raises(AssertionError):
        plan.run(0, q[:2], k[:2], v[:2])
    with pytest.raises(AssertionError):
        plan.run(0, q.double(), k, v)
    with pytest.raises(AssertionError, match="inference"):
        plan.run(0, q, k.requires_grad_(), v)


def test_select_backend_gives_the_cpu_one_without_cuda() -> None:
    pool = Twin().pool
    assert isinstance(select_backend("cpu", pool), CpuAttention)
    with pytest.raises(AssertionError, match="the pool is on cpu"):
        select_backend("cuda", pool)
