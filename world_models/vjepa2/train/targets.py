"""What the encoder is trained on: targets made from the picture's own pixels, no simulator state.

A V-JEPA objective collapses within a hundred steps at this size, and a latent that only describes its own patch gives
a planner a flat cost: two frames are then equally far apart as soon as the object has left the patch. So every token is
asked for the *whole* picture at three scales, and distances between latents are asked to follow distances between
blurred pictures, which grow with displacement over the whole table.
"""

from __future__ import annotations

import torch

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)

# (blur in pixels, side of the subsampled map): fine enough for a pixel, wide enough for the table.
_SCALES = ((3.0, 16), (8.0, 8), (18.0, 8))
# Pushing is judged by the blue object, and its displacement would otherwise weigh less than the rod's.
_CHANNEL_WEIGHTS = (1.0, 1.5)


def normalise_images(images: torch.Tensor) -> torch.Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W], ImageNet mean and deviation."""
    scaled = images.permute(0, 3, 1, 2).float() / 255.0
    return (scaled - torch.tensor(IMAGE_MEAN).view(3, 1, 1)) / torch.tensor(IMAGE_STD).view(3, 1, 1)


class ChromaMaps:
    """Red and blue opponent-colour maps of a picture, blurred at several scales, each scale standardised."""

    def __init__(self, sample: torch.Tensor) -> None:
        """sample: uint8 [N, H, W, 3], the frames whose statistics standardise the maps."""
        self._blurs = [_blur_matrix(sample.shape[1], sigma, side) for sigma, side in _SCALES]
        self._offsets = [torch.zeros(()) for _ in _SCALES]
        self._gains = [torch.ones(()) for _ in _SCALES]
        raw = self._raw(sample)
        self._offsets = [maps.mean(0) for maps in raw]
        self._gains = [
            1.0 / (maps - offset).std((0, 2, 3)).view(2, 1, 1) for maps, offset in zip(raw, self._offsets, strict=True)
        ]

    @property
    def num_values(self) -> int:
        return sum(2 * side * side for _, side in _SCALES)

    def __call__(self, images: torch.Tensor) -> list[torch.Tensor]:
        """uint8 [B, H, W, 3] -> one [B, 2, side, side] for each scale, unit variance over the data."""
        parts = zip(self._raw(images), self._offsets, self._gains, strict=True)
        return [(maps - offset) * gain for maps, offset, gain in parts]

    def _raw(self, images: torch.Tensor) -> list[torch.Tensor]:
        red, green, blue = (images.float() / 255.0).unbind(-1)
        chroma = torch.stack((red - (green + blue) / 2, blue - (red + green) / 2), 1)
        return [blur @ chroma @ blur.T for blur in self._blurs]


def picture_distance(maps: list[torch.Tensor]) -> torch.Tensor:
    """Pairwise distances [B, B] of B pictures: root mean square per scale and colour, summed."""
    total = torch.zeros(())
    for scale in maps:
        for channel, weight in enumerate(_CHANNEL_WEIGHTS):
            flat = scale[:, channel].flatten(1)
            total = total + weight * torch.cdist(flat, flat) / flat.shape[1] ** 0.5
    return total


def _blur_matrix(size: int, sigma: float, side: int) -> torch.Tensor:
    """[side, size]: a Gaussian blur sampled at `side` even places."""
    centres = (torch.arange(side) + 0.5) * size / side
    pixels = torch.arange(size) + 0.5
    weights = torch.exp(-0.5 * ((pixels[None] - centres[:, None]) / sigma) ** 2)
    return weights / (sigma * (2 * torch.pi) ** 0.5)
