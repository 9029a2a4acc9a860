"""Weights in the published layout: `ema.safetensors` (backbone and vision) and `ae.safetensors` (autoencoder).

Only the tensors of the part that is asked for are read: the published file has 29 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from generators.bagel.autoencoder import Autoencoder
from generators.bagel.backbone import Backbone
from generators.bagel.config import BLOCK, CONFIG_FILE, LANGUAGE_FILE, VISION_FILE, BagelConfig
from generators.bagel.network import MotNetwork
from generators.bagel.network import published as published_backbone
from generators.bagel.vision import Vision
from generators.bagel.vision import published as published_vision
from mstar_rt.nn.checkpoint import Rows, Spelling, Weights, as_named, load_strict, shapes_in_file
from mstar_rt.nn.linear import pack
from mstar_rt.nn.weight_shapes import safetensors_shapes

WEIGHTS_FILE, AUTOENCODER_FILE = "ema.safetensors", "ae.safetensors"

Part = TypeVar("Part", bound=nn.Module)


def load_backbone(
    config: BagelConfig,
    folder: Path,
    image_ids: tuple[int, int],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Backbone:
    """The language model with its generation twins, embedders and tables.

    Args:   image_ids: the tokens that begin and end an image.
    Raises: CheckpointError: names the file and the keys that are missing, unknown, of another shape or not finite.
    """
    with torch.device("meta"):
        network = MotNetwork(config)
    return Backbone(_load(network, config, folder, device, dtype), image_ids=image_ids)


def load_vision(
    config: BagelConfig, folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Vision:
    """The vision tower, its connector and the table of positions behind them.

    Raises: CheckpointError: names the file and the keys that are missing, unknown, of another shape or not finite.
    """
    with torch.device("meta"):
        vision = Vision(config)
    _load(vision, config, folder, device, dtype)
    pack(vision)
    return vision


def load_autoencoder(config: BagelConfig, folder: Path, *, device: str = "cpu") -> Autoencoder:
    """In float32, as images need it: bfloat16 has fewer steps than their bytes.

    Raises: CheckpointError: names the file and the keys that are missing, unknown, of another shape or not finite.
    """
    path = folder / AUTOENCODER_FILE
    with torch.device("meta"):
        autoencoder = Autoencoder(config.autoencoder)
    weights = _read(path, safetensors_shapes(path))
    return _settled(load_strict(autoencoder, weights, where=str(path), device=device, dtype=torch.float32))


def save_bagel(
    folder: Path,
    config: BagelConfig,
    network: MotNetwork,
    vision: Vision,
    autoencoder: Autoencoder,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write everything of a published folder but the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in _described(config).items():
        (folder / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    weights = _spelled(network, _spelling(network, config), dtype) | _spelled(vision, _spelling(vision, config), dtype)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    save_file(_spelled(autoencoder, as_named, dtype), folder / AUTOENCODER_FILE, metadata={"format": "pt"})


def _load(part: Part, config: BagelConfig, folder: Path, device: str, dtype: torch.dtype) -> Part:
    """`part`, which is on the meta device, with its weights out of a file that holds nothing that no part knows."""
    path = folder / WEIGHTS_FILE
    with torch.device("meta"):
        everything = [MotNetwork(config), Vision(config)]
    known = {key for each in everything for key in _keys(each, _spelling(each, config))}
    spelling = _spelling(part, config)
    own = _keys(part, spelling)
    weights = _read(path, [key for key in safetensors_shapes(path) if key in own or key not in known])
    return _settled(load_strict(part, weights, where=str(path), device=device, dtype=dtype, spelling=spelling))


def _settled(part: Part) -> Part:
    return part.eval().requires_grad_(False)


def _spelling(part: nn.Module, config: BagelConfig) -> Spelling:
    def spelled(key: str) -> Sequence[str] | Sequence[Rows]:
        return published_vision(key) if isinstance(part, Vision) else published_backbone(key, config)

    return spelled


def _keys(part: nn.Module, spelling: Spelling) -> set[str]:
    return {name for key, tensor in part.state_dict().items() for name in shapes_in_file(spelling(key), tensor)}


def _read(path: Path, keys: Iterable[str]) -> Weights:
    """Some tensors of a file whose header was read already."""
    with safe_open(path, framework="pt") as opened:
        return {key: opened.get_tensor(key) for key in keys}


def _spelled(part: nn.Module, spelling: Spelling, dtype: torch.dtype) -> Weights:
    tensors: Weights = {}
    for key, parameter in part.state_dict().items():
        shapes = shapes_in_file(spelling(key), parameter)
        pieces = parameter.detach().to("cpu", dtype).split([shape[0] for shape in shapes.values()])
        tensors |= {name: piece.contiguous().clone() for name, piece in zip(shapes, pieces, strict=True)}
    return tensors


def _described(config: BagelConfig) -> dict[str, dict[str, object]]:
    """The files that `read_config` reads."""
    language, vision = config.language, config.vision
    block = {
        "autoencoder": asdict(config.autoencoder),
        "latent_patch": config.latent_patch,
        "max_latent_side": config.max_latent_side,
        "max_vision_side": vision.max_side,
        "latent_size": asdict(config.latent_size),
        "vision_size": asdict(config.vision_size),
        "think_prompt": config.think_prompt,
        "defaults": asdict(config.defaults),
    }
    return {
        CONFIG_FILE: {BLOCK: block},
        LANGUAGE_FILE: {
            "model_type": "qwen2",
            "vocab_size": language.vocab_size,
            "hidden_size": language.width,
            "intermediate_size": language.mlp_dim,
            "num_hidden_layers": language.depth,
            "num_attention_heads": language.num_heads,
            "num_key_value_heads": language.num_kv_heads,
            "head_dim": language.head_dim,
            "rms_norm_eps": language.norm_eps,
            "rope_theta": language.rope_base,
            "tie_word_embeddings": language.is_tied,
            "max_position_embeddings": language.max_positions,
        },
        VISION_FILE: {
            "model_type": "siglip_vision_model",
            "hidden_size": vision.width,
            "intermediate_size": vision.mlp_dim,
            "num_hidden_layers": vision.depth + 1,  # the file counts a last layer that is never run
            "num_attention_heads": vision.num_heads,
            "patch_size": vision.patch_size,
            "image_size": vision.table_side * vision.patch_size,
        },
    }
