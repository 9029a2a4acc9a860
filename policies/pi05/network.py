"""The networks of pi0.5 and pi0: SigLIP and Gemma read images and text once, an expert turns noise into actions.

The same weights run dense, padded and masked (training, and the oracle), and against a paged cache (serving), where
only valid tokens exist: an absent camera has no tokens, and text has no padding.
Source: arXiv 2504.16054 and 2410.24164; the published PyTorch weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from mstar_rt.nn.attention import AttentionPlan
from mstar_rt.nn.decoder import DecoderLayer, KeyValueLayer, PreparedLayers, paged_attention
from mstar_rt.nn.linear import Linear
from mstar_rt.nn.rope import Rotary
from mstar_rt.nn.siglip import SiglipTower
from policies.pi05.config import Pi05Config
from policies.pi05.dense import DenseContext
from policies.pi05.expert import ActionExpert, Modulation
from policies.pi05.initialise import initialise


class Pi05Network(nn.Module):
    """See the module. Times are 1 at noise and 0 at actions; the velocity is noise less actions."""

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        self.config = config
        vision, width = config.vision, config.language.width
        self.vision = SiglipTower(
            vision.dim, vision.depth, vision.num_heads, vision.mlp_dim, vision.num_patches, vision.patch_size
        )
        self.projector = Linear(vision.dim, width)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.layers = nn.ModuleList(
            DecoderLayer(width, *heads, config.language.mlp_dim) for _ in range(config.depth - 1)
        )
        self._prepared = PreparedLayers(self.layers)
        self.last_layer = KeyValueLayer(width, config.num_kv_heads, config.head_dim)
        self.expert = ActionExpert(config)
        self._rotary = Rotary(config.head_dim)
        initialise(self)

    def embed_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [N, 3, S, S] in [-1, 1], RGB -> [N, P, width]."""
        return self.projector(self.vision(pixels.to(self.projector.weight.dtype)))

    def embed_text(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [...] int64 -> [..., width]."""
        return functional.embedding(ids, self.embed_tokens.weight) * math.sqrt(self.config.language.width)

    def modulation(self, times: torch.Tensor) -> Modulation:
        """What depends on flow times [...] alone; `rows` picks from it."""
        return self.expert.modulation(times)

    def prefill(
        self, tokens: torch.Tensor, positions: torch.Tensor, attention: AttentionPlan, layers: range | None = None
    ) -> torch.Tensor:
        """Store the keys and values of images and text in some of the `depth` layers, None: in all.

        Args:    tokens [M, width], all sequences one after the other, as the layer before `layers` gave them; positions
                 int64 [M], from 0 in each sequence.
                 attention: one BLOCK_APPEND per sequence.
        Returns: [M, width], what the layer after them takes.
        """
        turn = self._rotary.at(positions, len(positions) - 1)
        prepared = self._prepared.now()
        for index in range(self.config.depth) if layers is None else layers:
            if index < len(prepared):
                tokens = prepared[index].decode(tokens, turn, paged_attention(attention, index))
            else:
                attention.store(index, *self.last_layer(tokens, turn))
        return tokens

    def remember_state(
        self, state: torch.Tensor, positions: Sequence[int] | torch.Tensor, attention: AttentionPlan
    ) -> None:
        """Store the keys and values of pi0's state token behind each prefix.

        Args:  state [B, action_dim], normalised, zero beyond the robot's. positions: numbers of prefix tokens [B].
               attention: one append of one token per sequence.
        """
        turn = self.turn(positions, 1, state.device)

        def store(layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
            attention.store(layer, k.flatten(0, 1), v.flatten(0, 1))

        self.expert.remember(state, turn, lambda layer: paged_attention(attention, layer), store)

    def velocity(
        self,
        x: torch.Tensor,
        modulation: Modulation,
        positions: Sequence[int] | torch.Tensor,
        attention: AttentionPlan,
    ) -> torch.Tensor:
        """The velocity of blocks of actions.

        Differentiable with respect to x where gradients are enabled; what is stored counts as constant.

        Args:  x [B, H, action_dim] float32. modulation: of one time, or one per sequence [B] or per token [B, H].
               positions: numbers of stored tokens [B], the state's included.
               attention: one TRANSIENT_BLOCK of H tokens per sequence.
        Returns: [B, H, action_dim] float32.
        """
        turn = self.turn(positions, x.shape[1], x.device)
        return self.expert(x, modulation, turn, lambda layer: paged_attention(attention, layer))

    def forward_dense(
        self,
        images: torch.Tensor,
        image_mask: torch.Tensor,
        ids: torch.Tensor,
        id_mask: torch.Tensor,
        state: torch.Tensor | None,
        x_t: torch.Tensor,
        t: torch.Tensor,
    ) -> torch.Tensor:
        """The velocity, without a cache: for training, and as the oracle of the paged functions.

        Args:  images [B, C, 3, S, S] in [-1, 1]; image_mask bool [B, C]; ids int64 [B, L]; id_mask bool [B, L].
               state [B, action_dim], for pi0 only. x_t [K * B, H, action_dim]: K draws of noise and time over each
               prefix, row b * K + k over prefix b. t [K * B], or [K * B, H] per token.
        Returns: [K * B, H, action_dim] float32.
        """
        context = self.dense_context(images, image_mask, ids, id_mask, state)
        return self.dense_velocity(x_t, self.modulation(t), context.repeated(len(x_t) // len(images)))

    def dense_context(
        self,
        images: torch.Tensor,
        image_mask: torch.Tensor,
        ids: torch.Tensor,
        id_mask: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> DenseContext:
        """What the actions of `forward_dense` attend to; the same for all steps of a flow."""
        assert (state is not None) == self.config.takes_state
        embedded = self.embed_images(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        tokens = torch.cat([embedded.flatten(1, 2), self.embed_text(ids)], dim=1)
        mask = torch.cat([image_mask.repeat_interleave(embedded.shape[2], dim=1), id_mask], dim=1)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        turn = self._rotary.at(positions, tokens.shape[1])
        context = DenseContext.of(mask, tokens.dtype)
        for index, layer in enumerate(self._prepared.now()):
            tokens = layer.decode(tokens, turn, context.attend_and_store(index))
        context.store(len(self.layers), *self.last_layer(tokens, turn))
        if state is not None:
            self._remember_densely(state, context)
        return context

    def dense_velocity(self, x: torch.Tensor, modulation: Modulation, context: DenseContext) -> torch.Tensor:
        """`velocity` over what `dense_context` gave."""
        turn = self.turn(context.num_valid, x.shape[1], x.device, context.num_tokens)
        return self.expert(x, modulation, turn, context.attend)

    def _remember_densely(self, state: torch.Tensor, context: DenseContext) -> None:
        turn = self.turn(context.num_valid, 1, state.device, context.num_tokens)
        self.expert.remember(state, turn, context.attend_and_store, context.store)
        context.grow(1)

    def turn(
        self,
        positions: Sequence[int] | torch.Tensor,
        num_new: int,
        device: torch.device,
        max_position: int | None = None,
    ) -> torch.Tensor:
        """Rotary table of `num_new` tokens of each sequence from `positions` [B] on: [B, num_new, 1, head_dim / 2]."""
        first = torch.as_tensor(positions, device=device)[:, None]
        most = int(max(positions)) if max_position is None else max_position
        return self._rotary.at(first + torch.arange(num_new, device=device), most + num_new)
