"""Llamas with random weights and the tokenizers of their folders, in the published layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

NUM_BYTES = 256
TEMPLATE = "{% for turn in messages %}{{ turn.role + ': ' + turn.content + '\n' }}{% endfor %}"


@dataclass(frozen=True)
class LlamaSize:
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads


SMALL = LlamaSize(64, 2, 4, 2, 128)
Weights = dict[str, torch.Tensor]
"""By published name."""


def write_llama(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    """All but the tokenizer, into a new folder."""
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_talker(folder: Path) -> None:
    """A `SMALL` one whose tokens are bytes, so that next to nothing of a step is its head."""
    begin, end = NUM_BYTES, NUM_BYTES + 1
    weights = random_weights(SMALL, NUM_BYTES + 2, torch.Generator().manual_seed(0))
    weights["lm_head.weight"][NUM_BYTES:] = 0
    write_llama(folder, llama_config(SMALL, NUM_BYTES + 2, begin, end, end), weights)
    write_tokenizer(folder, {"<|begin|>": begin, "<|end|>": end})


def llama_config(size: LlamaSize, vocabulary: int, begin: int, end: int, pad: int) -> dict[str, Any]:
    """All that is not of `size` as Llama 3.2 has it, but for the head, which is one of its own."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": size.width, "intermediate_size": size.mlp_width, "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads, "num_key_value_heads": size.num_kv_heads, "head_dim": size.head_dim,
        "vocab_size": vocabulary, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 500_000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "bos_token_id": begin, "eos_token_id": end, "pad_token_id": pad,
    }  # fmt: skip


def random_weights(size: LlamaSize, vocabulary: int, generator: torch.Generator) -> Weights:
    """Scores of words have a standard deviation of 2."""
    kv_width = size.num_kv_heads * size.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    weights: Weights = {}
    for layer in range(size.num_layers):
        name = f"model.layers.{layer}."
        weights[f"{name}input_layernorm.weight"] = torch.ones(size.width)
        weights[f"{name}post_attention_layernorm.weight"] = torch.ones(size.width)
        weights[f"{name}self_attn.q_proj.weight"] = matrix(size.width, size.width)
        weights[f"{name}self_attn.k_proj.weight"] = matrix(kv_width, size.width)
        weights[f"{name}self_attn.v_proj.weight"] = matrix(kv_width, size.width)
        weights[f"{name}self_attn.o_proj.weight"] = matrix(size.width, size.width)
        weights[f"{name}mlp.gate_proj.weight"] = matrix(size.mlp_width, size.width)
        weights[f"{name}mlp.up_proj.weight"] = matrix(size.mlp_width, size.width)
        weights[f"{name}mlp.down_proj.weight"] = matrix(size.width, size.mlp_width)
    weights["model.norm.weight"] = torch.ones(size.width)
    weights["model.embed_tokens.weight"] = torch.randn(vocabulary, size.width, generator=generator)
    weights["lm_head.weight"] = 2 * matrix(vocabulary, size.width)
    return weights


def write_tokenizer(folder: Path, special: dict[str, int]) -> None:
    """One token for each byte, and `special` ones, the first of which begins a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    begin = next(iter(special))
    alphabet = {each: index for index, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({**alphabet, **special}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, special[begin])]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
