"""What actions attend to, kept as plain padded tensors: the cache of training and of the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional

from mstar_rt.nn.attention_dense import attend
from mstar_rt.nn.decoder import Attend


@dataclass
class DenseContext:
    """Keys and values of every layer, [B, N, kv heads, head_dim] each, of a batch of padded sequences.

    Every token sees all valid tokens that were there before its own block, and its own block.
    """

    num_valid: torch.Tensor
    """int64 [B]: where the next token stands."""
    num_tokens: int
    """N, with the padding."""
    hidden: torch.Tensor | None
    """Added to the scores, [B, N]: minus infinity at padding. None where there is none."""
    stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, mask: torch.Tensor, dtype: torch.dtype) -> DenseContext:
        """Nothing yet, for sequences of which `mask` [B, N] says what is valid; at least one token of each."""
        hidden = None
        if not mask.all():
            hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
        return cls(mask.sum(1), mask.shape[1], hidden)

    def attend(self, layer: int) -> Attend:
        """Attention over what is stored and the new tokens, which are not kept."""

        def attend_once(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self._attended(q, *self._with_stored(layer, k, v))

        return attend_once

    def attend_and_store(self, layer: int) -> Attend:
        """The like, of which the new tokens are kept."""

        def attend_then_store(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.store(layer, k, v)
            return self._attended(q, *self.stored[layer])

        return attend_then_store

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep k and v [B, n, kv heads, head_dim] behind what is there."""
        self.stored[layer] = self._with_stored(layer, k, v)

    def grow(self, num_new: int) -> None:
        """Count tokens that every layer has stored since."""
        self.num_valid = self.num_valid + num_new
        self.num_tokens += num_new
        self.hidden = None if self.hidden is None else functional.pad(self.hidden, (0, num_new))

    def repeated(self, times: int) -> DenseContext:
        """Every sequence `times` times, its copies one after the other."""
        if times == 1:
            return self
        stored = {
            layer: (k.repeat_interleave(times, dim=0), v.repeat_interleave(times, dim=0))
            for layer, (k, v) in self.stored.items()
        }
        hidden = None if self.hidden is None else self.hidden.repeat_interleave(times, dim=0)
        return DenseContext(self.num_valid.repeat_interleave(times), self.num_tokens, hidden, stored)

    def _with_stored(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer not in self.stored:
            return k, v
        keys, values = self.stored[layer]
        return torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden
        if hidden is not None and hidden.shape[1] < k.shape[1]:
            hidden = functional.pad(hidden, (0, k.shape[1] - hidden.shape[1]))
        return attend(q, k, v, causal=False, hidden=hidden)
