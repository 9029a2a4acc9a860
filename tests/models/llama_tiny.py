"""A tiny Llama in a folder as it is published, with everything that real ones have: grouped heads, slowed positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<s>", "<|start|>", "<|end|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WORDS = ("he", "ll", "hell", "hello", "wo", "rl", "worl", "world", "Ġw", "Ġworld")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("w", "o"), ("r", "l"), ("wo", "rl"), ("worl", "d")]
VALUES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def tokenizer() -> Tokenizer:
    """Bytes, and a few words: a vocabulary of 269."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *letters, *(word for word in WORDS if word not in letters)]
    merges = [*MERGES, ("Ġ", "w"), ("Ġ", "world")]
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    made.add_special_tokens(list(SPECIAL))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def write_folder(folder: Path, *, seed: int = 0, template: str = TEMPLATE, **changes: Any) -> Path:
    """All files of a published folder, with random weights. Returns the folder."""
    import torch

    from generators.llama.checkpoint import save_network
    from generators.llama.config import read_config
    from generators.llama.network import LlamaNetwork

    folder.mkdir(parents=True, exist_ok=True)
    words = tokenizer()
    words.save(str(folder / "tokenizer.json"))
    values = {"vocab_size": words.get_vocab_size(), **VALUES, **changes}
    (folder / "config.json").write_text(json.dumps(values))
    texts = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "<|end|>"}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = LlamaNetwork(read_config(folder))
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.15)
            else:
                parameter.data.uniform_(0.5, 1.5)
    save_network(network, folder / "model.safetensors")
    return folder
