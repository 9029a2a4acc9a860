"""The code of the nodes of a language model, with the weights and the tokenizer that they need."""

from __future__ import annotations

from typing import Any

import torch

from generators.llama.chat_nodes import Finish, Prompt, TextEnding
from generators.llama.checkpoint import load_llama
from generators.llama.config import read_config
from generators.llama.language_nodes import Decode, Prefill
from generators.llama.model import folder_of
from generators.llama.tokenizer import ChatTemplate, LlamaTokenizer
from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeResources, ServedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; load weights, tokenizer and template if one of them reads them.

    Raises: CheckpointError, ConfigError.
    """
    dtype = dtype_of(model, resources)
    folder = folder_of(model.name, model.checkpoint, model.options)
    config = read_config(folder)
    asked = resources.nodes or frozenset(node.name for node in model.graph.nodes)
    tokenizer = LlamaTokenizer(folder, config.vocab_size)
    code: dict[str, Any] = {"finish": Finish()}
    if "prompt" in asked:
        code["prompt"] = Prompt(tokenizer, ChatTemplate(folder), model.facts["max_sequence_tokens"])
    if asked & {"prefill", "decode"}:
        llama = load_llama(config, folder, device=resources.device, dtype=dtype)
        ending = TextEnding(tokenizer, config.end_ids)
        code |= {"prefill": Prefill(llama, ending), "decode": Decode(llama, ending)}
    return {name: node for name, node in code.items() if name in asked}


def dtype_of(model: ServedModel, resources: NodeResources) -> torch.dtype:
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    return DTYPES[resources.dtype]
