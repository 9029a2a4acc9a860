"""The network over paged memory against transformers' LlamaForCausalLM, and that rows do not see their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from llama_tiny import write_folder
from safetensors.torch import load_file, save_file

from generators.llama.checkpoint import load_llama
from generators.llama.config import read_config
from generators.llama.network import Llama
from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import CheckpointError
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention


def pool_for(llama: Llama) -> KVPool:
    config = llama.config
    return KVPool(KVSpec(config.depth, config.num_kv_heads, config.head_dim, 16, 128), num_pages=64)


class Reader:
    """Some sequences of one pool."""

    def __init__(self, llama: Llama, num_sequences: int) -> None:
        self.llama, pool = llama, pool_for(llama)
        self.backend = CpuAttention(pool)
        self.tables = [pool.new_table() for _ in range(num_sequences)]

    def read(self, texts: dict[int, list[int]]) -> torch.Tensor:
        """New ids by sequence -> scores behind each of them."""
        steps = [AttentionStep(self.tables[index], len(ids), StepKind.CAUSAL_APPEND) for index, ids in texts.items()]
        plan = self.backend.plan(steps)
        ids = torch.tensor([number for text in texts.values() for number in text])
        places = [torch.arange(first, first + len(text)) for first, text in zip(plan.positions, texts.values())]
        with torch.inference_mode():
            hidden = self.llama.read(ids, torch.cat(places), int(torch.cat(places).max()), plan)
            return self.llama.scores(hidden)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "rope_scaling": None, "head_dim": 24}])
def test_scores_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """In one go, in parts, and token by token, beyond the positions of the original training."""
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "tiny", **changes)
    ids = torch.randint(0, 260, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    oracle = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = oracle(torch.tensor([ids])).logits[0]
    assert expected.std() > 0.5
    llama = load_llama(read_config(folder), folder)
    reader = Reader(llama, 2)
    torch.testing.assert_close(reader.read({0: ids}), expected, rtol=0, atol=2e-5)
    parts = [ids[:1], ids[1:40], *[[number] for number in ids[40:45]], ids[45:]]
    torch.testing.assert_close(torch.cat([reader.read({1: part}) for part in parts]), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_the_same_bits_alone_and_beside_others(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    llama = load_llama(read_config(folder), folder, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    texts = {
        index: torch.randint(0, 260, (length,), generator=generator).tolist()
        for index, length in enumerate([1, 30, 7, 30])
    }

    def reader() -> Reader:
        made = Reader(llama, len(texts))
        pool = KVPool(KVSpec(2, 2, 16, 16, 128), num_pages=64, dtype=dtype)
        made.backend, made.tables = CpuAttention(pool), [pool.new_table() for _ in texts]
        return made

    together, alone = reader(), reader()
    ends = torch.tensor([len(text) for text in texts.values()]).cumsum(0)
    beside = [
        together.read(texts)[ends - 1],
        *[together.read({index: [5 + index] for index in texts}) for _ in range(3)],
    ]
    for index, text in texts.items():
        own = [alone.read({index: text})[-1], *[alone.read({index: [5 + index]})[0] for _ in range(3)]]
        for step, scores in enumerate(own):
            assert torch.equal(scores, beside[step][index]), (index, step)


def test_a_head_that_is_tied_and_saved_all_the_same(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    file = folder / "model.safetensors"
    weights = load_file(file)
    head = weights["model.embed_tokens.weight"].clone()
    inv_freq = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file({**weights, **inv_freq, "lm_head.weight": head}, file)
    load_llama(read_config(folder), folder)
    save_file({**weights, "lm_head.weight": head + 1}, file)
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        load_llama(read_config(folder), folder)
    del weights["model.norm.weight"]
    save_file({**weights, "model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, file)
    with pytest.raises(CheckpointError, match=r"lacks 'model.norm.weight' and has unknown keys .*q_proj.bias"):
        load_llama(read_config(folder), folder)
