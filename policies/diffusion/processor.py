"""Normalised images to what the image network takes; numbers to robot units and back are in `policies.lerobot`."""

from __future__ import annotations

import torch
from torch.nn import functional

from policies.diffusion.config import VisionConfig


def prepared(images: torch.Tensor, vision: VisionConfig) -> torch.Tensor:
    """Images [N, 3, H, W], resized and cut as `vision` says."""
    if vision.resize is not None:
        images = functional.interpolate(images, vision.resize, mode="bilinear", align_corners=False, antialias=True)
    if vision.crop is None:
        return images
    (height, width), (rows, columns) = images.shape[-2:], vision.crop
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    return images[..., top : top + rows, left : left + columns]
