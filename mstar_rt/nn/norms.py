"""Normalisations that carry no weights."""

from __future__ import annotations

import torch
from torch.nn import functional

LATENT_NORM_EPS = 1e-5
"""The affine-free norm between a V-JEPA encoder or predictor and its consumer uses torch's default eps, while the
norms inside the blocks use 1e-6."""


def normalise_latents(latents: torch.Tensor) -> torch.Tensor:
    """LayerNorm over the last dimension without scale or shift, eps 1e-5: [..., D] -> [..., D]."""
    return functional.layer_norm(latents, (latents.shape[-1],), eps=LATENT_NORM_EPS)
