"""The predictor step by step, with keys and values kept as plain tensors, for training and offline planning.

Keys and values of a frame depend on frames up to it alone, so a rollout that keeps them equals the dense forward on a
growing context, gradients included, at a fraction of its work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from mstar_rt.nn.norms import normalise_latents
from world_models.vjepa2.predictor import ActionPredictor


class Imagination:
    """One batch of rollouts: frames go in one at a time and the next frame's latents come out."""

    def __init__(self, predictor: ActionPredictor, num_rollouts: int) -> None:
        self._predictor = predictor
        self._attention = _KeptAttention(num_rollouts)

    def step(self, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """latents [B, P, D], actions and states [B, 7] of this frame -> normalised latents [B, P, D] of the next."""
        raw = self._predictor.step(latents, actions, states, self._attention)
        self._attention.advance(self._predictor.config.frame_tokens)
        return normalise_latents(raw)


class _KeptAttention:
    """An attention plan over B sequences that stand at the same frame; gradients flow through what it keeps."""

    def __init__(self, num_sequences: int) -> None:
        self.positions = [0] * num_sequences
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, read: Sequence[int] | None = None
    ) -> torch.Tensor:
        assert read is None, "in training every prediction is read"
        q, k, v = (x.unflatten(0, (len(self.positions), -1)).transpose(1, 2) for x in (q, k, v))
        if layer in self._kept:
            past_k, past_v = self._kept[layer]
            k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
        self._kept[layer] = (k, v)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        raise AssertionError("in training every prediction is read")

    def stored(self) -> None:
        """No block is transient."""

    def parts(self, max_blocks: int) -> Sequence[_KeptAttention]:
        """Gradients need every activation anyway."""
        return [self]

    def split(self, counts: Sequence[int]) -> Sequence[_KeptAttention]:
        raise AssertionError("in training all sequences run the same layers")

    def advance(self, num_tokens: int) -> None:
        self.positions = [position + num_tokens for position in self.positions]

    def rollback(self) -> None:
        raise AssertionError("a rollout in training is never taken back")
