"""Weights of the family: the Hugging Face layout of VJEPA2Model, and the published `.pt` files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from mstar_rt.errors import CheckpointError
from mstar_rt.nn.checkpoint import Weights, load_strict, read_safetensors_sections
from mstar_rt.nn.linear import pack
from world_models.vjepa2.checkpoint import UNUSED_KEYS as UNUSED_BY_ENCODER
from world_models.vjepa2.checkpoint import freeze, read_published
from world_models.vjepa2.dimensions import SECTIONS, is_torch_file
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2_video.config import VideoConfig
from world_models.vjepa2_video.net import MaskedPredictor

UNUSED_KEYS = (*UNUSED_BY_ENCODER, ("predictor", "predictor_pos_embed"))
MASK_TOKENS = "mask_tokens"
PARTS = ("query", "key", "value")

HUGGING_FACE_NAMES = (
    (r"(?:predictor_)?blocks\.(\d+)\.attn\.qkv\.", r"layer.\1.attention.{part}."),
    (r"(?:predictor_)?blocks\.(\d+)\.attn\.proj\.", r"layer.\1.attention.proj."),
    (r"(?:predictor_)?blocks\.", "layer."),
    (r"(?:predictor_)?norm\.", "layernorm."),
    (r"patch_embed\.", "embeddings.patch_embeddings."),
    (r"predictor_embed\.", "embeddings.predictor_embeddings."),
    (r"predictor_proj\.", "proj."),
    (MASK_TOKENS, f"embeddings.{MASK_TOKENS}"),
)
"""Beginnings of our keys, which are the published ones, and of the Hugging Face layout's; the first that fits."""


Network = Encoder | MaskedPredictor


def load_network(
    config: VideoConfig,
    path: Path,
    section: str,
    *,
    encoder_key: str = "encoder",
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """The "encoder" or the "predictor" with the weights at `path`, in evaluation mode, converted to `dtype`.

    Args:   path: a folder, file or index of safetensors in the Hugging Face layout, or a published `.pt`, whose
            dictionary `encoder_key` holds the encoder.
    Raises: CheckpointError: names the file and the keys that are missing, unknown or of another shape.
    """
    with torch.device("meta"):
        network = _new(config, section)
    if is_torch_file(path):
        weights, spelling = _read_published(path, encoder_key)[section], published_keys(config)
    else:
        weights, spelling = _read_hugging_face(path)[section], hugging_face_keys
    where = f"{path}: {section}"
    return _frozen(load_strict(network, weights, where=where, device=device, dtype=dtype, spelling=spelling))


def random_network(
    config: VideoConfig, section: str, seed: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Network:
    """An untrained network, for benchmarks of dimensions whose weights are not at hand."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _new(config, section)
    return _frozen(network.to(device, dtype))


def hugging_face_keys(key: str) -> tuple[str, ...]:
    """Under which keys of its section the Hugging Face layout holds our parameter `key`; queries, keys and values are
    apart there."""
    for ours, theirs in HUGGING_FACE_NAMES:
        named, found = re.subn(f"^{ours}", theirs, key)
        if found:
            return tuple(named.format(part=part) for part in PARTS) if "{part}" in named else (named,)
    raise AssertionError(f"no name is known for {key!r}")


def published_keys(config: VideoConfig) -> Callable[[str], tuple[str, ...]]:
    """Under which keys a published `.pt` holds a parameter: as we name it, but the mask tokens one by one."""
    mask_tokens = tuple(f"{MASK_TOKENS}.{index}" for index in range(config.predictor.num_mask_tokens))
    return lambda key: mask_tokens if key == MASK_TOKENS else (key,)


def _new(config: VideoConfig, section: str) -> Network:
    if section == "encoder":
        return Encoder(config.encoder)
    return MaskedPredictor(config.predictor, config.encoder.grid_size)


def _frozen(network: Network) -> Network:
    if isinstance(network, Encoder):
        freeze(network)
    else:
        pack(network)
    return network.eval().requires_grad_(False)


def _read_published(path: Path, encoder_key: str) -> dict[str, Weights]:
    weights = read_published(path, encoder_key, UNUSED_KEYS)
    predictor = weights["predictor"]
    weights["predictor"] = {
        key: tensor[None] if key.startswith(f"{MASK_TOKENS}.") else tensor for key, tensor in predictor.items()
    }
    return weights


def _read_hugging_face(path: Path) -> dict[str, Weights]:
    if path.is_dir() or path.suffix in {".safetensors", ".json"}:
        return read_safetensors_sections(path, SECTIONS)
    raise CheckpointError(
        f"{path} has an unknown kind of weights file {path.suffix!r}; expected .safetensors (or their index, or their "
        "folder) or .pt"
    )
