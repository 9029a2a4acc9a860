"""Camera frames to what the encoder takes, and what networks give held against what can be used."""

from __future__ import annotations

import math

import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST_NORMALISED = 16.0
"""Normalised pixels lie within -2.2 and 2.7. What is far beyond was surely not normalised."""


def normalise_frames(frames: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """RGB frames [T, H, W, 3] -> [T, 3, H, W] as the encoder takes them.

    uint8: each channel less its ImageNet mean, over its std. float32: these are normalised so already, and stay.
    The size is the model's: nothing is cropped or resized here.
    Raises: InvalidArgument: float32 frames that cannot have been normalised.
    """
    if frames.dtype == torch.uint8:
        scale = torch.tensor([1.0 / (255.0 * std) for std in IMAGENET_STD], device=frames.device)
        shift = torch.tensor([-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)], device=frames.device)
        normalised = frames.to(torch.float32) * scale + shift
    else:
        _check_normalised(frames)
        normalised = frames
    return normalised.permute(0, 3, 1, 2).to(dtype)


def checked_finite(latents: torch.Tensor, network: str) -> torch.Tensor:
    """`latents` themselves, layer-normed. NaN that got this far would come out as a plan with a cost of NaN.

    Their sum tells: normed numbers are too small to add up to infinity (30 times faster than looking at each).
    Raises: FailedPrecondition: they hold NaN or infinity.
    """
    if not math.isfinite(latents.sum()):
        raise FailedPrecondition(
            f"{network} gives NaN or infinity; check its weights, and that the inputs are in range"
        )
    return latents


def _check_normalised(frames: torch.Tensor) -> None:
    largest = float(frames.abs().max())
    if largest > LARGEST_NORMALISED:
        raise InvalidArgument(
            f"float32 frames hold values up to {largest:.4g}, expected normalised ones (ImageNet mean and std, about "
            "-2.1 to 2.7): normalise them, or send pixels of 0 to 255 as uint8"
        )
