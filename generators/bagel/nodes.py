"""The code of the nodes, with the weights and the tokenizer that they need."""

from __future__ import annotations

from typing import Any

from generators.bagel.checkpoint import load_autoencoder, load_backbone, load_vision
from generators.bagel.flow_nodes import Flow, Guide, Noise, Report
from generators.bagel.image_nodes import DecodeImage, EncodeLatents, EncodeVision, Pictures, ReadLatents, ReadVision
from generators.bagel.model import config_of, folder_of
from generators.bagel.processor import ImageProcessor
from generators.bagel.reading_nodes import ReadText, ReadThought
from generators.bagel.text_nodes import Begin, Thought, Tokenize
from generators.bagel.tokens import BagelTokens
from generators.bagel.writing_nodes import BeginWriting, Finish, Write
from generators.llama.nodes import dtype_of
from mstar_rt.model import NodeResources, ServedModel

OF_BACKBONE = frozenset({"read_text", "read_thought", "read_latents", "read_vision", "decode", "flow"})
OF_AUTOENCODER = frozenset({"encode_latents", "report", "decode_image"})


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; each part of the weights is loaded if one of them needs it.

    Raises: CheckpointError, ConfigError.
    """
    dtype, device = dtype_of(model, resources), resources.device
    config = config_of(model.name, model.checkpoint, model.options)
    folder = folder_of(model.name, model.checkpoint, model.options)
    names = frozenset(node.name for node in model.graph.nodes)
    asked = (resources.nodes or names) & names
    tokens, processor = BagelTokens(folder, config.language.vocab_size), ImageProcessor(config, device)
    code: dict[str, Any] = {
        "tokenize": Tokenize(tokens, config), "begin": Begin(config), "thought": Thought(tokens),
        "begin_writing": BeginWriting(tokens), "finish": Finish(), "noise": Noise(config.latent_dim, device),
        "guide": Guide(),
    }  # fmt: skip
    if asked & OF_BACKBONE:
        backbone = load_backbone(config, folder, tokens.image_ids, device=device, dtype=dtype)
        longest = model.facts["max_sequence_tokens"]
        code |= {
            "read_text": ReadText(backbone, longest), "read_thought": ReadThought(backbone),
            "read_latents": ReadLatents(backbone), "read_vision": ReadVision(backbone),
            "decode": Write(backbone, tokens), "flow": Flow(backbone),
        }  # fmt: skip
    if asked & OF_AUTOENCODER:
        autoencoder = load_autoencoder(config, folder, device=device)
        code |= {
            "encode_latents": EncodeLatents(autoencoder, processor, config),
            "report": Report(Pictures(autoencoder, config)),
            "decode_image": DecodeImage(autoencoder, config),
        }
    if "encode_vision" in asked:
        code["encode_vision"] = EncodeVision(load_vision(config, folder, device=device, dtype=dtype), processor)
    return {name: node for name, node in code.items() if name in asked}
