"""Pictures to what the networks take, and back."""

from __future__ import annotations

import torch
from torch.nn import functional

from generators.bagel.config import BagelConfig
from generators.bagel.sizes import Size, fitted_size


class ImageProcessor:
    """An image is made fit for the autoencoder first, and what comes of that for the vision tower: so each sees what it
    was trained with."""

    def __init__(self, config: BagelConfig, device: str) -> None:
        self._config = config
        self._device = device

    def latent_pixels(self, image: torch.Tensor) -> torch.Tensor:
        """image uint8 [H, W, 3] -> float32 [1, 3, h, w], -1 to 1, for the autoencoder.

        Raises: InvalidArgument: see fitted_size.
        """
        return to_pixels(self._fitted(image))

    def vision_pixels(self, image: torch.Tensor) -> torch.Tensor:
        """The same for the vision tower."""
        fitted = self._fitted(image)
        return to_pixels(resized(fitted, fitted_size(_size_of(fitted), self._config.vision_size)))

    def _fitted(self, image: torch.Tensor) -> torch.Tensor:
        image = image.to(self._device)
        return resized(image, fitted_size(_size_of(image), self._config.latent_size))


def resized(image: torch.Tensor, size: Size) -> torch.Tensor:
    """image uint8 [H, W, 3] -> uint8 [h, w, 3]: bicubic, averaging where it gets smaller, as Pillow does it.

    First the columns and then the rows, with bytes in between: so what is beyond black and white is cut twice.
    """
    for step in ((image.shape[0], size[1]), size):
        if _size_of(image) != step:
            planes = image.permute(2, 0, 1)[None].float()
            planes = functional.interpolate(planes, step, mode="bicubic", antialias=True, align_corners=False)
            image = planes[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
    return image


def to_pixels(image: torch.Tensor) -> torch.Tensor:
    """uint8 [H, W, 3] -> float32 [1, 3, H, W], -1 to 1."""
    return image.permute(2, 0, 1)[None].float() / 127.5 - 1


def to_image(pixels: torch.Tensor) -> torch.Tensor:
    """float32 [1, 3, H, W], -1 to 1 but for overshoot -> uint8 [H, W, 3]."""
    return (pixels[0].permute(1, 2, 0) * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)


def _size_of(image: torch.Tensor) -> Size:
    return image.shape[0], image.shape[1]
