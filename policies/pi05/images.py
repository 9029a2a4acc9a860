"""Camera frames to what the vision tower takes."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate, pad

BLACK = -1.0


def network_pixels(image: torch.Tensor, size: int) -> torch.Tensor:
    """One frame [H, W, 3] -> [3, size, size] float32 in [-1, 1].

    uint8: x / 255 * 2 - 1. float32: as it is. A frame of another size is resized to fit, its aspect kept, and centred
    on black.
    """
    pixels = image.permute(2, 0, 1)
    if image.shape[:2] != (size, size):
        pixels = resized(pixels, size)
    return pixels.to(torch.float32) / 255 * 2 - 1 if image.dtype == torch.uint8 else pixels.contiguous()


def resized(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """[3, H, W] -> [3, size, size]: bilinear, over all pixels that one stands for if it shrinks; uint8 is rounded."""
    height, width = pixels.shape[1:]
    ratio = max(height, width) / size
    fitted = max(1, int(height / ratio)), max(1, int(width / ratio))
    small = interpolate(pixels[None].to(torch.float32), fitted, mode="bilinear", antialias=True)[0]
    if pixels.dtype == torch.uint8:
        small = small.round().clamp(0, 255).to(torch.uint8)
    top, left = ((size - part) // 2 for part in fitted)
    borders = (left, size - fitted[1] - left, top, size - fitted[0] - top)
    return pad(small, borders, value=0 if pixels.dtype == torch.uint8 else BLACK)
