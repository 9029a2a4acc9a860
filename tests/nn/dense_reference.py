"""Attention written out from its definition in float64, over sequences kept as plain dense tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from mstar_rt.nn.attention import StepKind


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """q [N, Hq, D], k and v [L, Hkv, D], visible bool [N, L] -> [N, Hq, D], float64, one head at a time."""
    q, k, v = q.double(), k.double(), v.double()
    heads = []
    for head in range(q.shape[1]):
        kv_head = head // (q.shape[1] // k.shape[1])
        scores = (q[:, head] @ k[:, kv_head].T / math.sqrt(q.shape[2])).masked_fill(~visible, -math.inf)
        weights = torch.exp(scores - scores.amax(dim=1, keepdim=True))
        heads.append(weights / weights.sum(dim=1, keepdim=True) @ v[:, kv_head])
    return torch.stack(heads, dim=1)


def visibility(num_stored: int, num_new: int, kind: StepKind, block_tokens: int | None = None) -> torch.Tensor:
    """bool [num_new, num_stored + num_new]: the stored tokens always, the new ones by kind, of their block and earlier."""
    size = 1 if kind is StepKind.CAUSAL_APPEND else block_tokens or num_new
    block = torch.arange(num_new) // size
    stored = torch.ones(num_new, num_stored, dtype=torch.bool)
    return torch.cat([stored, block[None, :] <= block[:, None]], dim=1)


@dataclass
class DenseSequence:
    """Keys and values of one sequence, per layer [length, Hkv, D]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def empty(cls, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> DenseSequence:
        nothing = [torch.empty(0, num_kv_heads, head_dim, dtype=dtype) for _ in range(num_layers)]
        return cls(list(nothing), list(nothing))

    @property
    def length(self) -> int:
        return len(self.keys[0])

    def fork(self) -> DenseSequence:
        return DenseSequence(list(self.keys), list(self.values))

    def truncate(self, length: int) -> None:
        self.keys = [k[:length] for k in self.keys]
        self.values = [v[:length] for v in self.values]

    def step(
        self,
        layer: int,
        kind: StepKind,
        num_stored: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        block_tokens: int | None = None,
    ) -> torch.Tensor:
        """What the attention of one step must give; grows the sequence if the kind appends."""
        keys = torch.cat([self.keys[layer][:num_stored], k])
        values = torch.cat([self.values[layer][:num_stored], v])
        if kind.appends:
            self.keys[layer], self.values[layer] = keys, values
        return dense_attention(q, keys, values, visibility(num_stored, len(q), kind, block_tokens))


@dataclass
class TokenSource:
    """Random queries, keys and values from one seed: slices of one tensor, as a fused projection gives them."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    seed: int = 0
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def draw(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = (self.num_q_heads, self.num_kv_heads, self.num_kv_heads)
        fused = torch.randn(num_tokens, sum(heads), self.head_dim, generator=self.generator).to(self.dtype)
        q, k, v = fused.split(heads, dim=1)
        return q, k, v
