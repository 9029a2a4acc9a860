"""The FlashInfer backend makes the right calls, as a stand-in computes them; on a GPU, so does the library itself."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import PagesExhausted
from mstar_rt.model.served import KVSpec
from mstar_rt.nn import attention, attention_flashinfer
from mstar_rt.nn.attention import AttentionStep, StepKind, select_backend
from mstar_rt.nn.attention_cpu import CpuAttention
from mstar_rt.nn.attention_flashinfer import FlashInferAttention
from tests.nn import flashinfer_standin
from tests.nn.paged_twin import Twin, histories

CAUSAL, BLOCK, TRANSIENT = StepKind.CAUSAL_APPEND, StepKind.BLOCK_APPEND, StepKind.TRANSIENT_BLOCK

on_standin = functools.partial(FlashInferAttention, library=flashinfer_standin)


@pytest.fixture(autouse=True)
def _small_workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("cuda"):
        monkeypatch.setattr(attention_flashinfer, "WORKSPACE_BYTES", 16)


@settings(max_examples=80)
@given(
    changes=histories(),
    page_size=st.integers(1, 6),
    num_kv_heads=st.integers(1, 2),
    q_heads_per_kv_head=st.integers(1, 3),
)
def test_any_history_equals_dense_attention(changes: list[tuple[Any, ...]], **shape: int) -> None:
    attention_flashinfer.WORKSPACE_BYTES = 16
    twin = Twin(num_pages=600, dtype=torch.float32, make_backend=on_standin, **shape)
    twin.live_through(changes)
    for table in twin.tables:
        table.release()
    assert twin.pool.allocator.num_free == twin.pool.num_pages


def test_a_batch_of_all_kinds_with_and_without_history() -> None:
    twin = Twin(dtype=torch.float32, make_backend=on_standin)
    old, other, new = (twin.create() for _ in range(3))
    twin.step([(old, 6, CAUSAL), (other, 3, BLOCK), (new, 2, TRANSIENT)])
    twin.step([(new, 2, TRANSIENT), (old, 3, TRANSIENT), (other, 5, CAUSAL), (old, 4, BLOCK), (other, 1, TRANSIENT)])


def test_exhaustion_and_rollback_are_those_of_every_backend() -> None:
    twin = Twin(num_pages=3, dtype=torch.float32, make_backend=on_standin)
    index = twin.create()
    with pytest.raises(PagesExhausted):
        twin.step([(index, 13, BLOCK)])
    plan = twin.backend.plan([AttentionStep(twin.tables[index], 12, BLOCK)])
    plan.rollback()
    assert twin.pool.allocator.num_free == 3
    twin.step([(index, 12, BLOCK)])


@pytest.mark.parametrize(
    ("dtype", "head_dim", "expected"),
    [
        (torch.bfloat16, 64, FlashInferAttention),
        (torch.float16, 128, FlashInferAttention),
        (torch.float32, 64, CpuAttention),
        (torch.bfloat16, 32, CpuAttention),
    ],
)
def test_it_is_chosen_on_cuda_for_what_it_supports(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, expected: type
) -> None:
    library = ModuleType("flashinfer")
    library.__dict__.update(vars(flashinfer_standin))
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(KVPool, "device", torch.device("cuda"))
    monkeypatch.setattr(attention_flashinfer.torch, "empty", lambda *shape, **_: torch.zeros(16, dtype=torch.uint8))
    pool = KVPool(KVSpec(1, 1, head_dim, 4, 40), 2, dtype=dtype)
    assert type(select_backend("cuda", pool)) is expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert type(select_backend("cuda", pool)) is CpuAttention


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="flashinfer is not installed")
def test_the_library_takes_every_argument_that_we_pass() -> None:
    import flashinfer

    ours_and_theirs = [
        (getattr(flashinfer_standin, name), getattr(flashinfer, name))
        for name in ("append_paged_kv_cache", "merge_state")
    ]
    for name in ("BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"):
        ours, theirs = getattr(flashinfer_standin, name), getattr(flashinfer, name)
        ours_and_theirs += [(getattr(ours, method), getattr(theirs, method)) for method in ("__init__", "plan", "run")]
    for ours, theirs in ours_and_theirs:
        known = list(inspect.signature(theirs).parameters)
        used = list(inspect.signature(ours).parameters)
        assert set(used) <= set(known)
        positional = [name for name in used if inspect.signature(ours).parameters[name].default is inspect._empty]
        assert known[: len(positional)] == positional


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("page_size", [16, 18])
def test_the_library_gives_what_dense_attention_gives(dtype: torch.dtype, page_size: int) -> None:
    twin = Twin(
        page_size, dtype=dtype, head_dim=64, q_heads_per_kv_head=2, device="cuda", make_backend=FlashInferAttention
    )
    old, other, new = (twin.create() for _ in range(3))
    twin.step([(old, 40, CAUSAL), (other, page_size, BLOCK), (new, 7, TRANSIENT)])
    fork = twin.fork(old)
    for _ in range(3):
        twin.step([(old, 1, CAUSAL), (fork, 5, BLOCK), (other, 9, TRANSIENT), (new, 3, TRANSIENT)])
