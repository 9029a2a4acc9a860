"""Weights of an ACT policy in LeRobot's published layout: one `model.safetensors` beside its `config.json`."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from mstar_rt.nn.checkpoint import Weights, load_strict
from mstar_rt.nn.linear import pack
from policies.act.config import ActConfig
from policies.act.net import Eye, Transformer
from policies.lerobot.statistics import Processor, load_policy

SECTION = "model"
TRAINING_PART = "vae_encoder"
"""How all keys of the encoder of actions begin, which only training runs."""
EYE_PARTS = ("backbone.", "encoder_img_feat_input_proj.")


def read_policy(config: ActConfig, checkpoint: str, device: str) -> tuple[Weights, Processor]:
    """All weights that acting needs, by published name less `model.`, and the processor with the policy's statistics.

    Raises: CheckpointError.
    """
    weights, processor = load_policy(Path(checkpoint), SECTION, config.features, config.normalization, device)
    if config.has_training_part:
        weights = {key: tensor for key, tensor in weights.items() if not key.startswith(TRAINING_PART)}
    return weights, processor


def load_eye(config: ActConfig, weights: Weights, where: str, device: str, dtype: torch.dtype) -> Eye:
    """Raises: CheckpointError: a key is missing, unknown or of another shape."""
    with torch.device("meta"):
        eye = Eye(config)
    mine = {key: tensor for key, tensor in weights.items() if key.startswith(EYE_PARTS)}
    load_strict(eye, mine, where=where, device=device, dtype=torch.float32)
    eye.backbone.settle()
    return eye.to(dtype).eval().requires_grad_(False)


def load_transformer(config: ActConfig, weights: Weights, where: str, device: str, dtype: torch.dtype) -> Transformer:
    """Raises: CheckpointError: a key is missing, unknown (to the eye, too) or of another shape."""
    with torch.device("meta"):
        transformer = Transformer(config)
    mine = {key: tensor for key, tensor in weights.items() if not key.startswith(EYE_PARTS)}
    load_strict(transformer, mine, where=where, device=device, dtype=dtype, spelling=published_key)
    pack(transformer)
    transformer.locate()
    return transformer.eval().requires_grad_(False)


def published_key(key: str) -> tuple[str, ...]:
    """The name of our parameter `key` in the file, where query, key and value are one as well."""
    return (re.sub(r"\.qkv\.(weight|bias)$", r".in_proj_\1", key),)
