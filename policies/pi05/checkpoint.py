"""Weights of the family in the published layouts: openpi's, and LeRobot's, which puts `model.` before every key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Rows, Weights, load_strict, read_safetensors, shapes_in_file, without_prefixes
from mstar_rt.nn.linear import pack
from policies.pi05.config import Pi05Config
from policies.pi05.network import Pi05Network

LEROBOT_PREFIX = "model."
PALIGEMMA = "paligemma_with_expert.paligemma."
LANGUAGE = f"{PALIGEMMA}model.language_model."
EXPERT = "paligemma_with_expert.gemma_expert."
EMBEDDINGS = f"{LANGUAGE}embed_tokens.weight"
TIED_EMBEDDINGS = f"{PALIGEMMA}lm_head.weight"
"""The embeddings once more; some files hold them under this key alone."""

FUSED = re.compile(r"^(.*\.self_attn)\.(qkv|kv)_proj\.(weight|bias)$")
"""Our parameters that stand under a key each for queries, keys and values."""


def load_network(
    config: Pi05Config, path: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Pi05Network:
    """The network with the weights at `path`, in evaluation mode, converted to `dtype`.

    What no action depends on (the output heads, the language model's last layer but for its keys and values, its last
    norm) is accepted and not read.

    Args:   path: a safetensors file, the index of several, or a folder with either.
    Raises: CheckpointError: names the file and the keys that are missing, unknown, of another shape or not finite.
    """
    if not (path.is_dir() or path.suffix in {".safetensors", ".json"}):
        raise CheckpointError(f"{path} has an unknown kind of weights file {path.suffix!r}; expected .safetensors")
    weights = without_prefixes(read_safetensors(path), (LEROBOT_PREFIX,), str(path))
    with torch.device("meta"):
        network = Pi05Network(config)
    load_strict(
        network,
        _read_weights(weights, config),
        where=str(path),
        device=device,
        dtype=dtype,
        spelling=lambda key: published_keys(key, config),
    )
    return freeze(network)


def random_network(
    config: Pi05Config, seed: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Pi05Network:
    """An untrained network, for benchmarks of dimensions whose weights are not at hand."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pi05Network(config)
    return freeze(network.to(device, dtype))


def save_network(network: Pi05Network, path: Path, *, dtype: torch.dtype = torch.float16) -> None:
    """Write openpi's layout, less what `load_network` does not read."""
    tensors: Weights = {}
    for key, parameter in network.state_dict().items():
        shapes = shapes_in_file(published_keys(key, network.config), parameter)
        parts = parameter.detach().to("cpu", dtype).split([shape[0] for shape in shapes.values()])
        tensors |= {name: part.clone(memory_format=torch.contiguous_format) for name, part in zip(shapes, parts)}
    save_file(tensors, path)


def freeze(network: Pi05Network) -> Pi05Network:
    """Evaluation mode, no gradients for weights, and what the layers derive from weights that no longer change."""
    network.eval().requires_grad_(False)
    pack(network)
    return network


def published_keys(key: str, config: Pi05Config) -> Sequence[str] | Sequence[Rows]:
    """Under which keys openpi's layout holds our parameter `key`."""
    named = _renamed(key, config)
    fused = FUSED.match(named)
    if fused is None:
        return (named,)
    attention, parts, kind = fused.groups()
    names = [f"{attention}.{part}_proj.{kind}" for part in parts]
    if key.startswith("vision."):
        return names
    rows = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    return [Rows(name, rows[part] * config.head_dim) for name, part in zip(names, parts, strict=True)]


def _renamed(key: str, config: Pi05Config) -> str:
    beginnings = {
        "vision.": f"{PALIGEMMA}model.vision_tower.vision_model.",
        "projector.": f"{PALIGEMMA}model.multi_modal_projector.linear.",
        "embed_tokens.": f"{LANGUAGE}embed_tokens.",
        "layers.": f"{LANGUAGE}layers.",
        "last_layer.": f"{LANGUAGE}layers.{config.depth - 1}.",
        "expert.layers.": f"{EXPERT}model.layers.",
        "expert.norm.": f"{EXPERT}model.norm.",
        "expert.": "",
    }
    ours = next(beginning for beginning in beginnings if key.startswith(beginning))
    return beginnings[ours] + key.removeprefix(ours)


def _read_weights(weights: Weights, config: Pi05Config) -> Weights:
    """Those that the network has, and what it does not know."""
    if EMBEDDINGS not in weights and TIED_EMBEDDINGS in weights:
        weights = {**weights, EMBEDDINGS: weights[TIED_EMBEDDINGS]}
    last = f"{LANGUAGE}layers.{config.depth - 1}."
    unread = {TIED_EMBEDDINGS, f"{EXPERT}lm_head.weight", f"{LANGUAGE}norm.weight"} | {
        f"{last}{part}.weight"
        for part in (
            "self_attn.q_proj", "self_attn.o_proj", "post_attention_layernorm",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )
    }  # fmt: skip
    return {key: tensor for key, tensor in weights.items() if key not in unread}
