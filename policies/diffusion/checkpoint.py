"""Weights of a Diffusion Policy in LeRobot's published layout: one `model.safetensors` beside its `config.json`."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from mstar_rt.nn.checkpoint import Weights, load_strict
from mstar_rt.nn.linear import pack
from policies.diffusion.config import DiffusionConfig
from policies.diffusion.net import Eye, Unet
from policies.lerobot.statistics import Processor, load_policy

SECTION = "diffusion"
EYE, UNET = "rgb_encoder.", "unet."
COUNTER = ".num_batches_tracked"
"""End of the keys with which a batch norm counts in training."""
SEQUENCE = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
"""Places of the image network's parts, which the file has in a sequence without names."""


def read_policy(config: DiffusionConfig, checkpoint: str, device: str) -> tuple[Weights, Processor]:
    """All weights, by published name less `diffusion.`, and the processor with the policy's statistics.

    Raises: CheckpointError.
    """
    weights, processor = load_policy(Path(checkpoint), SECTION, config.features, config.normalization, device)
    if not config.vision.has_group_norm:
        weights = {key: tensor for key, tensor in weights.items() if not key.endswith(COUNTER)}
    return weights, processor


def load_eyes(config: DiffusionConfig, weights: Weights, where: str, device: str, dtype: torch.dtype) -> dict[str, Eye]:
    """What each camera is seen with, by its name: one for all, or one each.

    Raises: CheckpointError: a key is missing, unknown or of another shape.
    """
    mine = {key.removeprefix(EYE): tensor for key, tensor in weights.items() if key.startswith(EYE)}
    names = [camera.name for camera in config.cameras]
    if not config.vision.one_per_camera:
        return dict.fromkeys(names, _eye(config, mine, where, device, dtype))
    return {
        name: _eye(config, _numbered(mine, index, len(names)), f"{where}: {EYE}{index}", device, dtype)
        for index, name in enumerate(names)
    }


def load_unet(config: DiffusionConfig, weights: Weights, where: str, device: str, dtype: torch.dtype) -> Unet:
    """Raises: CheckpointError: a key is missing, unknown (to the eyes, too) or of another shape."""
    with torch.device("meta"):
        unet = Unet(config)
    mine = {key.removeprefix(UNET): tensor for key, tensor in weights.items() if not key.startswith(EYE)}
    load_strict(unet, mine, where=where, device=device, dtype=dtype)
    pack(unet)
    return unet.eval().requires_grad_(False)


def _eye(config: DiffusionConfig, weights: Weights, where: str, device: str, dtype: torch.dtype) -> Eye:
    with torch.device("meta"):
        eye = Eye(config)
    load_strict(eye, weights, where=where, device=device, dtype=torch.float32, spelling=published_key)
    eye.backbone.settle()
    return eye.to(dtype).eval().requires_grad_(False)


def _numbered(weights: Weights, index: int, count: int) -> Weights:
    """The weights of one of `count` eyes; what belongs to none is with the first, which refuses it."""
    known = tuple(f"{each}." for each in range(count))
    return {
        key.removeprefix(f"{index}."): tensor
        for key, tensor in weights.items()
        if key.startswith(f"{index}.") or (index == 0 and not key.startswith(known))
    }


def published_key(key: str) -> tuple[str, ...]:
    """The name of an eye's parameter `key` in the file."""
    return (re.sub(r"^backbone\.(\w+)\.", lambda part: f"backbone.{SEQUENCE[part[1]]}.", key),)
