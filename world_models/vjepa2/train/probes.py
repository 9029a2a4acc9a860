"""How much a latent knows: linear read-outs of positions, for reports only, never for training."""

from __future__ import annotations

import numpy as np
import torch

from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.train.targets import normalise_images


@torch.no_grad()
def encode_images(encoder: Encoder, images: np.ndarray, batch: int = 512) -> torch.Tensor:
    """uint8 [N, H, W, 3] -> [N, P, D] float16."""
    parts = [
        encoder.encode_frames(normalise_images(torch.from_numpy(images[start : start + batch]))).half()
        for start in range(0, len(images), batch)
    ]
    return torch.cat(parts)


class PositionProbe:
    """Ridge regression from all of a frame's latents to (effector x, y, puck x, y), metres."""

    def __init__(self, latents: torch.Tensor, positions: np.ndarray, ridge: float = 1.0) -> None:
        x = _with_one(latents)
        y = torch.from_numpy(positions).double()
        gram = x.T @ x + ridge * torch.eye(x.shape[1], dtype=torch.float64)
        self._weights = torch.linalg.solve(gram, x.T @ y)

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        """[N, P, D] -> [N, 4]."""
        return _with_one(latents) @ self._weights


def _with_one(latents: torch.Tensor) -> torch.Tensor:
    flat = latents.flatten(1).double()
    return torch.cat((flat, torch.ones(len(flat), 1, dtype=torch.float64)), 1)
