"""Pictures as the networks take them, and back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def to_pixels(pictures: NDArray[np.uint8]) -> torch.Tensor:
    """[N, H, W, 3] -> float32 [N, 3, H, W], -1 to 1."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1


def to_pictures(pixels: torch.Tensor) -> NDArray[np.uint8]:
    """The inverse of `to_pixels`; what overshoots is cut."""
    whole = (pixels.permute(0, 2, 3, 1).clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8)
    return np.ascontiguousarray(whole.numpy())
