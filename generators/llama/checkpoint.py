"""Weights of a Llama in the published layout: LlamaForCausalLM's, one safetensors file or several with an index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from generators.llama.config import LlamaConfig
from generators.llama.network import Llama, LlamaNetwork
from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Rows, Weights, load_strict, read_safetensors, shapes_in_file

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DERIVED = re.compile(r"^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")
"""Old files hold the frequencies of positions, which follow from the dimensions."""
FUSED = re.compile(r"^(.*\.self_attn)\.qkv_proj\.weight$")


def load_llama(config: LlamaConfig, folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Llama:
    """The network with the weights in `folder`, converted to `dtype`.

    Raises: CheckpointError: names the file and the keys that are missing, unknown, of another shape or not finite.
    """
    weights = {key: tensor for key, tensor in read_safetensors(folder).items() if not DERIVED.match(key)}
    if config.is_tied:
        _drop_tied_head(weights, folder)
    with torch.device("meta"):
        network = LlamaNetwork(config)
    load_strict(
        network, weights, where=str(folder), device=device, dtype=dtype, spelling=lambda key: published(key, config)
    )
    return Llama(network.eval().requires_grad_(False))


def save_network(network: LlamaNetwork, path: Path) -> None:
    """Write the published layout as one safetensors file."""
    tensors: Weights = {}
    for key, parameter in network.state_dict().items():
        shapes = shapes_in_file(published(key, network.config), parameter)
        parts = parameter.detach().split([shape[0] for shape in shapes.values()])
        tensors |= {name: part.contiguous().clone() for name, part in zip(shapes, parts, strict=True)}
    save_file(tensors, path, metadata={"format": "pt"})


def published(key: str, config: LlamaConfig) -> Sequence[str] | Sequence[Rows]:
    """Under which keys the published layout holds our parameter `key`."""
    named = key if key == HEAD else f"model.{key}"
    fused = FUSED.match(named)
    if fused is None:
        return (named,)
    rows = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    return [Rows(f"{fused[1]}.{part}_proj.weight", count * config.head_dim) for part, count in rows.items()]


def _drop_tied_head(weights: Weights, folder: Path) -> None:
    """Some files hold a tied head all the same; it has to be the embedding."""
    head = weights.pop(HEAD, None)
    if head is None:
        return
    if EMBEDDING not in weights:
        weights[EMBEDDING] = head
    elif not torch.equal(head, weights[EMBEDDING]):
        raise CheckpointError(
            f"{folder}: config.json says that the head is the embedding (tie_word_embeddings), but {HEAD!r} differs "
            f"from {EMBEDDING!r}; set tie_word_embeddings to false if the head was trained apart"
        )
