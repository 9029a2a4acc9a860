"""Appends whose layers run in several steps, between others, give and store what they do in one step."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
import torch

from mstar_rt.cache.moving import apply_deltas, export_delta
from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.model.served import KVSpec
from mstar_rt.nn import attention_flashinfer
from mstar_rt.nn.attention import AttentionBackend, AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_flashinfer import FlashInferAttention
from tests.nn import flashinfer_standin

LAYERS, PAGE, HEADS, DIM = 5, 4, 2, 8
SPEC = KVSpec(LAYERS, HEADS, DIM, PAGE, max_sequence_tokens=64)
BACKENDS = {"cpu": CpuAttention, "flashinfer": functools.partial(FlashInferAttention, library=flashinfer_standin)}


@pytest.fixture(params=BACKENDS)
def make_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[KVPool], AttentionBackend]:
    monkeypatch.setattr(attention_flashinfer, "WORKSPACE_BYTES", 16)
    return BACKENDS[request.param]


class Cached:
    """Sequences of some history in a pool of their own."""

    def __init__(self, make_backend: Callable[[KVPool], AttentionBackend], histories: list[int]) -> None:
        self.pool = KVPool(SPEC, 64)
        self.pool.kv.fill_(float("nan"))
        self.backend = make_backend(self.pool)
        self.store = SequenceStore(self.pool)
        for label, history in enumerate(histories):
            table, draw = self.store.get(label), torch.Generator().manual_seed(100 + label)
            if history:
                plan = self.backend.plan([AttentionStep(table, history, StepKind.CAUSAL_APPEND)])
                for layer in range(LAYERS):
                    x = torch.randn(history, HEADS, DIM, generator=draw)
                    plan.run(layer, x, x, x)

    def plan(self, counts: dict[int, int], kind: StepKind, appended: frozenset[int] = frozenset()) -> AttentionPlan:
        """Of so many tokens of each sequence."""
        return self.backend.plan(
            [
                AttentionStep(self.store.get(label), count, kind, appended=label in appended)
                for label, count in counts.items()
            ]
        )

    def tokens(self, label: int) -> torch.Tensor:
        table = self.store.get(label)
        return self.pool.read_tokens(table, 0, table.length)


def drawn(label: int, layer: int, count: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(10 * label + layer)
    return tuple(torch.randn(count, HEADS, DIM, generator=draw) for _ in range(3))


@pytest.mark.parametrize("seed", range(6))
def test_layers_in_several_steps_are_those_of_one(
    make_backend: Callable[[KVPool], AttentionBackend], seed: int
) -> None:
    draw = random.Random(seed)
    kind = draw.choice([StepKind.BLOCK_APPEND, StepKind.CAUSAL_APPEND])
    histories = [draw.choice([0, 0, 3, 8, 9]) for _ in range(4)]
    counts = {label: draw.randint(1, 9) for label in range(4)}
    whole, parts = Cached(make_backend, histories), Cached(make_backend, histories)
    plan, expected = whole.plan(counts, kind), {}
    for layer in range(LAYERS):
        qkv = zip(*(drawn(label, layer, count) for label, count in counts.items()), strict=True)
        out = plan.run(layer, *map(torch.cat, qkv)).split(list(counts.values()))
        expected.update({(label, layer): rows for label, rows in zip(counts, out, strict=True)})
    done = dict.fromkeys(counts, 0)
    while any(layers < LAYERS for layers in done.values()):
        unfinished = [label for label, layers in done.items() if layers < LAYERS]
        chosen = draw.sample(unfinished, draw.randint(1, len(unfinished)))
        appended = frozenset(label for label in chosen if done[label])
        step = parts.plan({label: counts[label] for label in chosen}, kind, appended)
        assert list(step.positions) == [histories[label] for label in chosen]
        for label, plan in zip(chosen, step.split([1] * len(chosen)), strict=True):
            stop = draw.randint(done[label] + 1, LAYERS)
            for layer in range(done[label], stop):
                out = plan.run(layer, *drawn(label, layer, counts[label]))
                torch.testing.assert_close(out, expected[label, layer], rtol=0, atol=1e-6)
            done[label] = stop
    for label in counts:
        assert torch.equal(parts.tokens(label), whole.tokens(label))


def test_a_later_part_takes_no_page_and_gives_none_back(make_backend: Callable[[KVPool], AttentionBackend]) -> None:
    cached = Cached(make_backend, [6])
    cached.plan({0: 7}, StepKind.BLOCK_APPEND)
    num_free, table = cached.pool.allocator.num_free, cached.store.get(0)
    later = cached.plan({0: 7}, StepKind.BLOCK_APPEND, frozenset({0}))
    assert (cached.pool.allocator.num_free, table.length) == (num_free, 13)
    later.rollback()
    assert (cached.pool.allocator.num_free, table.length) == (num_free, 13)


def test_what_another_rank_got_between_two_parts_goes_there_again(
    make_backend: Callable[[KVPool], AttentionBackend],
) -> None:
    """As it may where a sibling's value crosses, with whatever is in the cache."""
    here, there = Cached(make_backend, [5]), SequenceStore(KVPool(SPEC, 16))
    for layers in (range(2), range(2, LAYERS)):
        plan = here.plan({0: 6}, StepKind.BLOCK_APPEND, frozenset({0} if layers.start else ()))
        for layer in layers:
            plan.run(layer, *drawn(0, layer, 6))
        apply_deltas(there, 0, export_delta(here.store, 1))
    table = there.get(0)
    assert torch.equal(there.pool.read_tokens(table, 0, table.length), here.tokens(0))


def test_tokens_that_others_share_are_not_written_again(make_backend: Callable[[KVPool], AttentionBackend]) -> None:
    cached = Cached(make_backend, [0])
    cached.plan({0: 5}, StepKind.BLOCK_APPEND)
    cached.store.fork(0, 1)
    with pytest.raises(AssertionError, match="several sequences share"):
        cached.plan({0: 5}, StepKind.BLOCK_APPEND, frozenset({0}))
