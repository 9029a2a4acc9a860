"""A tiny Orpheus in a folder as it is published, language model and codec. It babbles: random sounds, but whole frames of
them, as each token makes one of the next slot likely, and at the beginning of a frame the end is as likely as any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from llama_tiny import tokenizer, write_folder
from safetensors.torch import load_file, save_file

from generators.orpheus.snac_config import SnacConfig, read_snac_config
from generators.orpheus.snac_net import Codebook, SnacNet

SNAC: dict[str, Any] = {
    "encoder_dim": 2, "encoder_rates": [2, 2, 2, 4], "decoder_dim": 32, "decoder_rates": [4, 2, 2, 2],
    "attn_window_size": None, "codebook_size": 16, "sampling_rate": 8000,
}  # fmt: skip
NUM_WORDS = tokenizer().get_vocab_size()
STOP, AUDIO_BASE = NUM_WORDS + 2, NUM_WORDS + 4
VOICES = ("ann", "bob")
LOUDNESS = 0.5
"""The norm of the codec's weights: all that is between silence and full scale."""
SURE = 8.0
"""How much likelier the right slot is, in logits or more."""


def write_orpheus(folder: Path, *, seed: int = 0, snac: dict[str, Any] | None = None, **changes: Any) -> Path:
    """`changes` are of the language model's config.json. Returns the folder."""
    write_codec(folder / "snac", SNAC | (snac or {}), seed)
    codec = read_snac_config(folder / "snac" / "config.json")
    words = {
        "audio_base": AUDIO_BASE, "stop_id": STOP, "prompt_start": [NUM_WORDS], "prompt_end": [2, NUM_WORDS + 1],
        "voices": list(VOICES),
    }  # fmt: skip
    size = AUDIO_BASE + codec.num_slots * codec.codebook_size
    write_folder(
        folder,
        seed=seed,
        vocab_size=size,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        orpheus=words,
        **changes,
    )
    make_babble(folder / "model.safetensors", codec)
    return folder


def make_babble(file: Path, codec: SnacConfig) -> None:
    """One channel of the residual stream for each slot says that it is next."""
    weights = load_file(file)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    slots = torch.arange(codec.num_slots).repeat_interleave(codec.codebook_size)
    nexts, heads = torch.zeros(len(embedding), dtype=torch.int64), torch.full((len(head),), -1)
    nexts[AUDIO_BASE:], heads[AUDIO_BASE:], heads[STOP] = (slots + 1) % codec.num_slots, slots, 0
    channels = torch.arange(codec.num_slots)
    embedding[:, : codec.num_slots] = (channels == nexts[:, None]) * SURE
    head[:, : codec.num_slots] = (channels == heads[:, None]) * SURE
    for key, tensor in weights.items():
        if key.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[: codec.num_slots] = 0
    weights["model.norm.weight"][: codec.num_slots] = 1
    save_file(weights, file)


def write_codec(folder: Path, values: dict[str, Any], seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    config = read_snac_config(folder / "config.json")
    net, generator = SnacNet(config), torch.Generator().manual_seed(seed)
    norms = {name for name, module in net.named_modules() if hasattr(module, "weight") and "codebook" not in name}
    state: dict[str, torch.Tensor] = {"encoder.block.0.bias": torch.zeros(2)}
    for index, module in enumerate(net.modules()):
        if isinstance(module, Codebook):
            state[f"quantizer.quantizers.{index}.in_proj.bias"] = torch.zeros(config.codebook_dim)
    for key, parameter in net.state_dict().items():
        drawn = torch.randn(parameter.shape, generator=generator)
        name = key.removesuffix(".weight")
        if name in norms:
            lengths = torch.full((len(drawn), *[1] * (drawn.dim() - 1)), LOUDNESS)
            state |= {f"{name}.parametrizations.weight.original{part}": of for part, of in enumerate((lengths, drawn))}
        else:
            state[key] = drawn.abs() + 0.5 if "alpha" in key else drawn * (1 if "codebook" in key else 0.1)
    torch.save(state, folder / "pytorch_model.bin")
