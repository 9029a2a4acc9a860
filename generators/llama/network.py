"""The Llama network: its weights, and what runs them over paged memory.

Source: arXiv 2407.21783, and the published weights of LlamaForCausalLM.
"""

from __future__ import annotations

from dataclasses import astuple

import torch
from torch import nn
from torch.nn import functional

from generators.llama.config import LlamaConfig
from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.decoder import DecoderLayer, LayerParts, paged_attention
from mstar_rt.nn.linear import Linear
from mstar_rt.nn.packed_linear import MIN_ROWS, PackedLinear, attend_once, doubled
from mstar_rt.nn.rms_norm import NormKind, RMSNorm, normed
from mstar_rt.nn.rope import LongContext, Rotary


class LlamaNetwork(nn.Module):
    """The weights as published. `lm_head` is None where the embedding is the head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        kind = NormKind(config.norm_eps, offset=0.0)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            DecoderLayer(
                config.width, config.num_heads, config.num_kv_heads, config.head_dim, config.mlp_dim,
                norm_kind=kind, activation="silu",
            )
            for _ in range(config.depth)
        )  # fmt: skip
        self.norm = RMSNorm(config.width, kind)
        self.lm_head = None if config.is_tied else Linear(config.width, config.vocab_size, bias=False)


class Llama:
    """A network for inference, whose tokens come out alike, bit for bit, whoever shares a step: see PackedLinear."""

    def __init__(self, network: LlamaNetwork) -> None:
        """Takes the weights over, layer by layer: they are laid out anew, and `network` is of no use any more."""
        self.config = config = network.config
        self._embedding = network.embed_tokens.weight.detach()
        self._layers: list[LayerParts] = []
        while len(network.layers):
            layer = network.layers.pop(0)
            assert isinstance(layer, DecoderLayer)
            self._layers.append(layer.packed())
        self._norm = network.norm.weight.detach()
        self._norm_kind = network.norm.kind
        self._head = PackedLinear(self._embedding if network.lm_head is None else network.lm_head.weight)
        network.lm_head = None
        scaling = config.rope_scaling
        self._rotary = Rotary(
            config.head_dim, config.rope_base, None if scaling is None else LongContext(*astuple(scaling))
        )

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def read(self, ids: torch.Tensor, positions: torch.Tensor, last: int, attention: AttentionPlan) -> torch.Tensor:
        """Append tokens.

        Args:    ids, positions int64 [N], all sequences one after the other. last: the largest position.
                 attention: a CAUSAL_APPEND for each sequence.
        Returns: [N, width], what `scores` takes.
        """
        x = functional.embedding(ids, self._embedding)
        turn = self._rotary.at(positions, last)
        is_lone = len(ids) < MIN_ROWS
        if is_lone:
            x, turn = doubled(x), doubled(turn)
        for index, layer in enumerate(self._layers):
            attend = paged_attention(attention, index)
            x = layer.decode(x, turn, attend_once(attend) if is_lone else attend)
        return x[: len(ids)]

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, width], what `read` gave at some tokens -> scores of the next one, float32 [B, vocabulary]."""
        num_rows = len(x)
        x = normed(x, self._norm, None, self._norm_kind)
        return self._head(doubled(x) if num_rows < MIN_ROWS else x)[:num_rows].float()
