"""Camera frames to what the encoder takes."""

from __future__ import annotations

import torch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalise_frames(frames: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """RGB frames [T, H, W, 3] uint8 -> [T, 3, H, W], each channel less its ImageNet mean, over its std.

    The size is the model's: nothing is cropped or resized here.
    """
    scale = torch.tensor([1.0 / (255.0 * std) for std in IMAGENET_STD], device=frames.device)
    shift = torch.tensor([-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)], device=frames.device)
    return (frames.to(torch.float32) * scale + shift).permute(0, 3, 1, 2).to(dtype)
