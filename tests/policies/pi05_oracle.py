"""pi0.5 and pi0 written out from their description, in float64: one sequence at a time, prefix and suffix in one pass
under one visibility matrix, no cache, no padding, weights under their published keys."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from policies.pi05.config import Pi05Config

Weights = Mapping[str, torch.Tensor]

PALIGEMMA = "paligemma_with_expert.paligemma.model."
VISION = f"{PALIGEMMA}vision_tower.vision_model."
LANGUAGE = f"{PALIGEMMA}language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."


class Oracle:
    def __init__(self, config: Pi05Config, weights: Weights) -> None:
        self.config = config
        self.weights = {key: tensor.double() for key, tensor in weights.items()}

    def prefix(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """images [C, 3, S, S], ids [L] -> [C * P + L, width]."""
        seen = [self._affine(f"{PALIGEMMA}multi_modal_projector.linear", self._vision(image)) for image in images]
        table = self.weights[f"{LANGUAGE}embed_tokens.weight"]
        return torch.cat([*seen, table[ids] * math.sqrt(table.shape[1])])

    def velocity(
        self, images: torch.Tensor, ids: torch.Tensor, state: torch.Tensor | None, x: torch.Tensor, t: torch.Tensor
    ) -> torch.Tensor:
        """x [H, A], t [H] -> [H, A]."""
        prefix, actions = self.prefix(images, ids), self._affine("action_in_proj", x.double())
        times, condition = self._time(t), None
        if state is None:
            condition = self._silu("time_mlp_out", self._silu("time_mlp_in", times))
            suffix = actions
        else:
            both = self._silu("action_time_mlp_in", torch.cat([actions, times], dim=-1))
            suffix = torch.cat(
                [self._affine("state_proj", state.double())[None], self._affine("action_time_mlp_out", both)]
            )
        block = [0] * len(prefix) + [1] * (len(suffix) - len(x)) + [2] * len(x)
        visible = torch.tensor([[seen <= seer for seen in block] for seer in block])
        for layer in range(self.config.depth):
            prefix, suffix = self._layer(layer, prefix, suffix, visible, condition)
        normed, _ = self._norm(f"{EXPERT}norm", suffix, condition)
        return self._affine("action_out_proj", normed[-len(x) :])

    def actions(
        self, images: torch.Tensor, ids: torch.Tensor, state: torch.Tensor | None, noise: torch.Tensor, steps: int
    ) -> torch.Tensor:
        x = noise.double()
        for step in range(steps):
            t = torch.full(x.shape[:1], 1 - step / steps, dtype=torch.float32)
            x = x - self.velocity(images, ids, state, x, t) / steps
        return x

    def _layer(
        self,
        layer: int,
        prefix: torch.Tensor,
        suffix: torch.Tensor,
        visible: torch.Tensor,
        condition: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both streams have their own weights and meet in the attention."""
        streams = [(f"{LANGUAGE}layers.{layer}.", prefix, None), (f"{EXPERT}layers.{layer}.", suffix, condition)]
        before = [self._norm(f"{name}input_layernorm", x, given) for name, x, given in streams]
        heads = {
            part: torch.cat([
                self._product(f"{name}self_attn.{part}_proj", normed).unflatten(-1, (-1, self.config.head_dim))
                for (name, _, _), (normed, _) in zip(streams, before)
            ])
            for part in "qkv"
        }  # fmt: skip
        attended = self._attended(self._rotated(heads["q"]), self._rotated(heads["k"]), heads["v"], visible)
        after = []
        for (name, x, given), (_, gate), out in zip(streams, before, attended.split([len(prefix), len(suffix)])):
            x = x + gate * self._product(f"{name}self_attn.o_proj", out)
            normed, gate = self._norm(f"{name}post_attention_layernorm", x, given)
            opened = functional.gelu(self._product(f"{name}mlp.gate_proj", normed), approximate="tanh")
            hidden = opened * self._product(f"{name}mlp.up_proj", normed)
            after.append(x + gate * self._product(f"{name}mlp.down_proj", hidden))
        return after[0], after[1]

    def _norm(
        self, name: str, x: torch.Tensor, condition: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The normed tokens, and the gate of what follows."""
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        if f"{name}.weight" in self.weights:
            return normed * (1 + self.weights[f"{name}.weight"]), 1.0
        assert condition is not None
        scale, shift, gate = self._affine(f"{name}.dense", condition).chunk(3, dim=-1)
        return normed * (1 + scale) + shift, gate

    def _rotated(self, heads: torch.Tensor) -> torch.Tensor:
        """[N, heads, head_dim], the tokens standing at 0, 1, 2 ..."""
        half = self.config.head_dim // 2
        frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(heads), dtype=torch.float64)[:, None, None] * frequencies
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
        )

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        per_group = self.config.num_heads // self.config.num_kv_heads
        k, v = k.repeat_interleave(per_group, dim=1), v.repeat_interleave(per_group, dim=1)
        scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(self.config.head_dim)
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        return torch.einsum("hnm,mhd->nhd", weights, v).flatten(1)

    def _time(self, t: torch.Tensor) -> torch.Tensor:
        half = self.config.expert.width // 2
        low, high = self.config.min_period, self.config.max_period
        periods = [low * (high / low) ** (index / (half - 1)) for index in range(half)]
        angles = torch.stack([t.double() * 2 * math.pi / period for period in periods], dim=-1)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def _vision(self, image: torch.Tensor) -> torch.Tensor:
        """[3, S, S] -> [P, dim]."""
        kernel = self.weights[f"{VISION}embeddings.patch_embedding.weight"]
        bias = self.weights[f"{VISION}embeddings.patch_embedding.bias"]
        patches = functional.conv2d(image.double()[None], kernel, bias, stride=kernel.shape[-1])[0].flatten(1).T
        x = patches + self.weights[f"{VISION}embeddings.position_embedding.weight"]
        for layer in range(self.config.vision.depth):
            name = f"{VISION}encoder.layers.{layer}."
            normed = self._layer_norm(f"{name}layer_norm1", x)
            q, k, v = (
                self._affine(f"{name}self_attn.{part}_proj", normed).unflatten(-1, (self.config.vision.num_heads, -1))
                for part in "qkv"
            )
            scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
            seen = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v).flatten(1)
            x = x + self._affine(f"{name}self_attn.out_proj", seen)
            hidden = self._affine(f"{name}mlp.fc1", self._layer_norm(f"{name}layer_norm2", x))
            x = x + self._affine(f"{name}mlp.fc2", functional.gelu(hidden, approximate="tanh"))
        return self._layer_norm(f"{VISION}post_layernorm", x)

    def _layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)
        return normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _silu(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = self._affine(name, x)
        return y / (1 + torch.exp(-y))

    def _affine(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._product(name, x) + self.weights[f"{name}.bias"]

    def _product(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T
