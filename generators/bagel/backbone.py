"""The language model on paged memory: text and images into contexts, velocities of latents out of them.

Products are packed (see PackedLinear), so that a token of text comes out alike, bit for bit, whoever shares its step.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from generators.bagel.network import MotNetwork, packed_layers
from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.decoder import paged_attention
from mstar_rt.nn.packed_linear import MIN_ROWS, PackedLinear, attend_once, doubled
from mstar_rt.nn.rms_norm import normed

NUM_BORDERS = 2
"""The tokens around an image."""


class Backbone:
    def __init__(self, network: MotNetwork, image_ids: tuple[int, int]) -> None:
        """Takes the weights over: `network` is of no use any more. `image_ids`: of the tokens before and behind an
        image."""
        self.config = network.config
        self._embedding = network.embed_tokens.weight.detach()
        self._layers = packed_layers(network)
        self._norm, self._norm_latents = network.norm.weight.detach(), network.norm_moe_gen.weight.detach()
        self._norm_kind = network.norm.kind
        self._head = PackedLinear(self._embedding if network.lm_head is None else network.lm_head.weight)
        network.lm_head = None
        self._in, self._out = PackedLinear.of(network.vae2llm), PackedLinear.of(network.llm2vae)
        self._time, self._places = network.time_embedder, network.latent_pos_embed
        self._rotary = network.rotary
        self._borders = self.embed(torch.tensor(image_ids, device=self.device))

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def borders(self) -> torch.Tensor:
        """[2, W]: what stands before and behind an image."""
        return self._borders

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """ids int64 [N] -> [N, W]."""
        return functional.embedding(ids, self._embedding)

    def read(self, x: torch.Tensor, positions: torch.Tensor, last: int, attention: AttentionPlan) -> torch.Tensor:
        """Tokens of text and of images that are looked at.

        Args:    x [N, W], all sequences one after the other; their rope positions int64 [N], and the largest of them.
                 attention: a step for each sequence.
        Returns: [N, W], what `scores` takes.
        """
        num_rows, turn = len(x), self._rotary.at(positions, last)
        is_lone = num_rows < MIN_ROWS
        if is_lone:
            x, turn = doubled(x), doubled(turn)
        for index, layer in enumerate(self._layers):
            attend = paged_attention(attention, index)
            heads = layer.und.project(x, turn)
            x = layer.und.finish(x, (attend_once(attend) if is_lone else attend)(*heads).flatten(-2))
        return x[:num_rows]

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, W], what `read` gave at some tokens -> scores of the next one, float32 [B, vocabulary]."""
        num_rows = len(x)
        x = normed(x, self._norm, None, self._norm_kind)
        return self._head(doubled(x) if num_rows < MIN_ROWS else x)[:num_rows].float()

    def latents_in(self, tokens: torch.Tensor, times: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """tokens [B, T, latent_dim] at flow times [B], T of a grid (rows, columns) -> [B, T, W]."""
        x = self._in(tokens.to(self.dtype).flatten(0, 1)).unflatten(0, tokens.shape[:2])
        return x + self._time(times)[:, None] + self._places(grid)

    def read_latents(
        self, x: torch.Tensor, positions: torch.Tensor, last: int, attention: AttentionPlan
    ) -> torch.Tensor:
        """Blocks of latents, equally many each.

        Args:    x [B, T, W], see `latents_in`. The rope positions of the blocks int64 [B], and the largest of them.
                 attention: B steps of T + 2 tokens; in a block the latents come first, and then the tokens around them,
                 as their order makes no difference.
        Returns: [B, T, W], what `velocity` takes.
        """
        num_blocks, num_latents, width = x.shape
        gen, und = x.flatten(0, 1), self._borders.repeat(num_blocks, 1)
        turns = self._rotary.at(positions, last)
        gen_turn, und_turn = turns.repeat_interleave(num_latents, 0), turns.repeat_interleave(NUM_BORDERS, 0)
        for index, layer in enumerate(self._layers):
            of_gen = [part.unflatten(0, (num_blocks, -1)) for part in layer.gen.project(gen, gen_turn)]
            of_und = [part.unflatten(0, (num_blocks, -1)) for part in layer.und.project(und, und_turn)]
            q, k, v = (torch.cat(pair, dim=1) for pair in zip(of_gen, of_und, strict=True))
            attended = paged_attention(attention, index)(q, k, v).flatten(-2)
            gen = layer.gen.finish(gen, attended[:, :num_latents].flatten(0, 1))
            if index + 1 < len(self._layers):  # nobody reads the borders after the last layer
                und = layer.und.finish(und, attended[:, num_latents:].flatten(0, 1))
        return gen.view(num_blocks, num_latents, width)

    def velocity(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, W], what `read_latents` gave -> noise less data, float32 [B, T, latent_dim]."""
        y = normed(x.flatten(0, 1), self._norm_latents, None, self._norm_kind)
        return self._out(y).float().unflatten(0, x.shape[:2])
