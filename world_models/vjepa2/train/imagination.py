"""The predictor as training and offline planning use it: dense over known frames, and step by step with kept keys.

Keys and values of a frame depend on frames up to it alone, so a rollout that keeps them equals the dense forward on a
growing context, gradients included, at a fraction of its work.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from mstar_rt.nn.norms import normalise_latents
from mstar_rt.nn.rope3d import Rotation
from mstar_rt.nn.vit import Attend
from world_models.vjepa2.predictor import ActionPredictor

_Layer = tuple[torch.Tensor, torch.Tensor]


class Imagination:
    """One batch of rollouts: frames go in one at a time and the next frame's latents come out."""

    def __init__(self, predictor: ActionPredictor, layers: list[_Layer] | None = None, num_frames: int = 0) -> None:
        self._predictor = predictor
        self._layers = layers or []
        self._num_frames = num_frames

    def step(self, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """latents [B, P, D], actions and states [B, 7] of this frame -> normalised latents [B, P, D] of the next."""
        predictor = self._predictor
        tokens = predictor._embed(latents, actions, states, None)
        rotation = Rotation(*(table[self._num_frames] for table in predictor._rotation(latents.device)))
        layers: list[_Layer] = []
        for index, block in enumerate(predictor.predictor_blocks):
            past = self._layers[index] if self._layers else None
            tokens = block(tokens, rotation, _attend_and_keep(past, layers))
        self._layers = layers
        self._num_frames += 1
        return normalise_latents(predictor._read_out(tokens))


def predict_known(
    predictor: ActionPredictor, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, Imagination]:
    """Teacher-forced prediction.

    Args:    latents [B, T, P, D], actions and states [B, T, 7].
    Returns: normalised predictions [B, T, P, D] of frames 1..T, and an imagination that has seen frame 0.
    """
    num_frames, frame_tokens = latents.shape[1], predictor.config.frame_tokens
    tokens = predictor._embed(latents, actions, states, None).flatten(1, 2)
    rotation = Rotation(*(t[:num_frames].flatten(0, 1) for t in predictor._rotation(latents.device)))
    mask = predictor._mask(num_frames, tokens.dtype, tokens.device)
    layers: list[_Layer] = []
    for block in predictor.predictor_blocks:
        tokens = block(tokens, rotation, _attend_and_keep(None, layers, mask))
    first = [(k[:, :frame_tokens], v[:, :frame_tokens]) for k, v in layers]
    out = normalise_latents(predictor._read_out(tokens.unflatten(1, (num_frames, -1))))
    return out, Imagination(predictor, first, 1)


def _attend_and_keep(past: _Layer | None, kept: list[_Layer], mask: torch.Tensor | None = None) -> Attend:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        kept.append((k, v))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return attend
