"""The code of the nodes of a voice, with the weights and the tokenizer that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generators.llama.checkpoint import load_llama
from generators.llama.language_nodes import Decode, EndIds, Prefill
from generators.llama.nodes import dtype_of
from generators.llama.tokenizer import LlamaTokenizer
from generators.orpheus.checkpoint import load_snac
from generators.orpheus.codec_nodes import Codec
from generators.orpheus.model import config_of
from generators.orpheus.prompt_nodes import Finish, Prompt
from generators.orpheus.sound import Sounds
from mstar_rt.model import NodeResources, ServedModel


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for, and load what they need. The codec computes in float32 in any case.

    Raises: CheckpointError, ConfigError.
    """
    dtype = dtype_of(model, resources)
    config, folder = config_of(model.name, model.checkpoint, model.options), Path(model.checkpoint)
    asked = resources.nodes or frozenset(node.name for node in model.graph.nodes)
    code: dict[str, Any] = {"finish": Finish()}
    if "prompt" in asked:
        tokenizer = LlamaTokenizer(folder, config.llama.vocab_size)
        code["prompt"] = Prompt(tokenizer, config.vocabulary, model.facts["max_sequence_tokens"])
    if asked & {"prefill", "decode"}:
        llama = load_llama(config.llama, folder, device=resources.device, dtype=dtype)
        ending = EndIds({config.vocabulary.stop_id})
        code |= {"prefill": Prefill(llama, ending), "decode": Decode(llama, ending)}
    if "codec" in asked:
        code["codec"] = Codec(Sounds(load_snac(config.codec_folder, resources.device)), config.audio_ids)
    return {name: node for name, node in code.items() if name in asked}
