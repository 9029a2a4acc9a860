"""The tensors of a pool follow its page tables."""

from __future__ import annotations

import pytest
import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.cache.sequence_store import SequenceStore
from mstar_rt.errors import NotFound
from mstar_rt.model.served import KVSpec

SPEC = KVSpec(num_layers=3, num_kv_heads=2, head_dim=4, page_size=5, max_sequence_tokens=40)


def filled_pool(num_pages: int = 12) -> KVPool:
    pool = KVPool(SPEC, num_pages)
    pool.kv.copy_(torch.randn(pool.kv.shape))
    return pool


def test_sizes_are_those_of_the_declaration() -> None:
    pool = KVPool(SPEC, 12, dtype=torch.bfloat16)
    assert pool.num_bytes == 12 * SPEC.page_bytes(2)
    assert pool.num_bytes == 12 * SPEC.page_size * SPEC.num_layers * pool.token_bytes
    assert pool.keys(1).shape == pool.values(2).shape == (12, 5, 2, 4)
    assert pool.dtype is torch.bfloat16


def test_layers_keys_and_values_are_apart() -> None:
    pool = KVPool(SPEC, 2)
    pool.keys(1)[0] = 1.0
    assert pool.kv.sum() == pool.keys(1).sum() == SPEC.page_size * SPEC.num_kv_heads * SPEC.head_dim


def test_copy_on_write_copies_keys_and_values_of_every_layer() -> None:
    pool = filled_pool()
    table = pool.new_table()
    table.append(7)
    before = pool.kv.clone()
    twin = table.fork()
    twin.append(1)
    assert twin.pages[1] != table.pages[1]
    assert torch.equal(pool.kv[:, :, twin.pages[1]], before[:, :, table.pages[1]])
    untouched = [page for page in range(pool.num_pages) if page != twin.pages[1]]
    assert torch.equal(pool.kv[:, :, untouched], before[:, :, untouched])


def test_a_batch_of_new_sequences_lies_evenly() -> None:
    pool = KVPool(SPEC, 4 * 8, extent_pages=8)
    tables = [pool.new_table() for _ in range(4)]
    for _ in range(8):
        for table in tables:
            table.append(5)
    assert [table.pages for table in tables] == [list(range(8 * i, 8 * i + 8)) for i in range(4)]


def test_store_makes_forks_replaces_and_releases() -> None:
    pool = KVPool(SPEC, 12)
    store = SequenceStore(pool)
    store.get("context").append(7)
    assert store.get("context").length == 7
    fork = store.fork("context", ("candidate", 0))
    assert fork.length == 7
    fork.append(6)
    assert store.fork("context", ("candidate", 0)) is not fork
    assert fork.released
    assert len(store) == 2
    assert store.num_page_holds == 4
    assert pool.allocator.num_held == 2
    assert store.fork("context", "context") is store.get("context")

    replacement = pool.new_table()
    store.put("context", replacement)
    assert store.get("context") is replacement
    store.release(("candidate", 0))
    store.release(("candidate", 0))
    assert list(store) == ["context"]
    assert pool.allocator.num_held == 0

    store.get("context").append(1)
    store.release_all()
    store.release_all()
    assert (len(store), pool.allocator.num_held) == (0, 0)


def test_forking_a_sequence_that_is_not_there_names_those_that_are() -> None:
    store = SequenceStore(KVPool(SPEC, 2))
    store.get("context")
    with pytest.raises(NotFound, match=r"no sequence 'contxt' to fork; there are \['context'\]"):
        store.fork("contxt", "b")
    assert list(store) == ["context"]
