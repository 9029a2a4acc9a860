"""The loop that a user of the published weights runs: plain torch, one process, one image after the other.

Contexts are read once and kept, as published; each step then runs every branch of the guidance, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from generators.bagel.autoencoder import from_tokens
from generators.bagel.checkpoint import load_autoencoder
from generators.bagel.config import BagelConfig, read_config
from generators.bagel.embedders import grid_ids, sinusoids
from generators.bagel.tokens import BagelTokens

LANGUAGE = "language_model.model."
TEXT, LATENTS = "", "_moe_gen"
"""What the names of the weights of either kind of token have in them."""

Cache = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, [1, heads, tokens, head_dim]; empty: nothing was read."""


@dataclass(frozen=True)
class Drawing:
    """What is drawn with; see the options of the task. `num_steps` are evaluations of each branch.

    `skips`: branches without effect are not run, as the published loop does it outside of the guidance interval.
    """

    num_steps: int
    shift: float
    text_guidance: float
    start: float
    end: float
    skips: bool = False


@dataclass
class Context:
    cache: Cache
    position: int


class NativeBagel:
    """`folder` has the published files. Images are made of latents by the autoencoder of this repository, as served."""

    def __init__(self, folder: Path) -> None:
        self.config: BagelConfig = read_config(folder)
        self._tokens = BagelTokens(folder, self.config.language.vocab_size)
        self._autoencoder = load_autoencoder(self.config, folder)
        self._weights = load_file(folder / "ema.safetensors")
        language = self.config.language
        self._weights = {name: weight.float() for name, weight in self._weights.items()}
        exponents = torch.arange(0, language.head_dim, 2) / language.head_dim
        self._turns = language.rope_base**-exponents
        self.num_passes = 0

    def draw(self, prompt: str, noise: torch.Tensor, how: Drawing) -> np.ndarray:
        """noise float32 [rows, columns, latent_dim] -> an image uint8 [H, W, 3]."""
        grid = (noise.shape[0], noise.shape[1])
        with torch.inference_mode():
            ids = torch.tensor(self._tokens.wrapped(prompt))
            tokens = self.latents(ids, noise.flatten(0, 1), grid, self._tokens.image_ids, how)
            pixels = self._autoencoder.decode(from_tokens(tokens[None], grid, self.config.latent_patch))[0]
            return ((pixels.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()

    def read_text(self, ids: torch.Tensor) -> Context:
        """ids int64 [N], wrapped."""
        context = Context([], 0)
        positions = torch.arange(len(ids))
        x = self._of(f"{LANGUAGE}embed_tokens.weight")[ids][None]
        _, context.cache = self._layers(x, None, positions, context.cache, causal=True)
        context.position = len(ids)
        return context

    def latents(
        self, ids: torch.Tensor, noise: torch.Tensor, grid: tuple[int, int], borders: Sequence[int], how: Drawing
    ) -> torch.Tensor:
        """noise float32 [T, latent_dim] -> the latents of the image, [T, latent_dim]."""
        contexts = [self.read_text(ids), Context([], 0), self.read_text(ids)]  # all, without text, without images
        u = torch.linspace(1, 0, how.num_steps + 1)
        times = (how.shift * u / (1 + (how.shift - 1) * u)).tolist()
        x = noise[None]
        for time, following in pairwise(times):
            is_guided = how.start < time <= how.end and how.text_guidance > 1
            branches = contexts[: 1 + is_guided] if how.skips else contexts
            velocities = [self._velocity(x, time, context, grid, borders) for context in branches]
            velocity = velocities[0]
            if is_guided:
                guided = velocities[1] + how.text_guidance * (velocity - velocities[1])
                velocity = guided * (velocity.norm() / (guided.norm() + 1e-8)).clamp(max=1)
            x = x - velocity * (time - following)
        return x[0]

    def _velocity(
        self, x: torch.Tensor, time: float, context: Context, grid: tuple[int, int], borders: Sequence[int]
    ) -> torch.Tensor:
        self.num_passes += 1
        of, config = self._of, self.config
        tokens = functional.linear(x, of("vae2llm.weight"), of("vae2llm.bias"))
        hidden = functional.linear(
            sinusoids(torch.tensor([time])), of("time_embedder.mlp.0.weight"), of("time_embedder.mlp.0.bias")
        )
        hidden = functional.silu(hidden)
        tokens = tokens + functional.linear(hidden, of("time_embedder.mlp.2.weight"), of("time_embedder.mlp.2.bias"))
        tokens = tokens + of("latent_pos_embed.pos_embed")[grid_ids(grid, config.max_latent_side)]
        around = of(f"{LANGUAGE}embed_tokens.weight")[list(borders)][None]
        positions = torch.full((len(borders) + tokens.shape[1],), context.position)
        gen, _ = self._layers(around, tokens, positions, context.cache, causal=False)
        gen = self._norm(gen, f"{LANGUAGE}norm_moe_gen.weight")
        return functional.linear(gen, of("llm2vae.weight"), of("llm2vae.bias"))

    def _layers(
        self, und: torch.Tensor, gen: torch.Tensor | None, positions: torch.Tensor, cache: Cache, causal: bool
    ) -> tuple[torch.Tensor, Cache]:
        """und [1, N, W], and gen behind it -> what comes of the latter, and all keys and values."""
        angles = positions[:, None] * self._turns
        cosine, sine = (torch.cat([part, part], dim=-1) for part in (angles.cos(), angles.sin()))
        kept: Cache = []
        num_und = und.shape[1]
        for number in range(self.config.language.depth):
            kinds = [(und, TEXT)] if gen is None else [(und, TEXT), (gen, LATENTS)]
            parts = [self._heads(x, number, twin) for x, twin in kinds]
            q, k, v = (torch.cat(each, dim=2) for each in zip(*parts, strict=True))
            q, k = (each * cosine + _turned(each) * sine for each in (q, k))
            if cache:
                k, v = torch.cat([cache[number][0], k], dim=2), torch.cat([cache[number][1], v], dim=2)
            kept.append((k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            attended = attended.transpose(1, 2).flatten(2)
            und = self._finish(und, attended[:, :num_und], number, TEXT)
            if gen is not None:
                gen = self._finish(gen, attended[:, num_und:], number, LATENTS)
        return (und if gen is None else gen), kept

    def _heads(self, x: torch.Tensor, number: int, twin: str) -> list[torch.Tensor]:
        """Queries, keys and values, not turned yet, [1, heads, N, head_dim]."""
        layer = f"{LANGUAGE}layers.{number}."
        x = self._norm(x, f"{layer}input_layernorm{twin}.weight")
        heads = []
        for part in "qkv":
            name = f"{layer}self_attn.{part}_proj{twin}"
            each = functional.linear(x, self._of(f"{name}.weight"), self._of(f"{name}.bias"))
            each = each.unflatten(-1, (-1, self.config.language.head_dim)).transpose(1, 2)
            heads.append(each if part == "v" else self._norm(each, f"{layer}self_attn.{part}_norm{twin}.weight"))
        return heads

    def _finish(self, x: torch.Tensor, attended: torch.Tensor, number: int, twin: str) -> torch.Tensor:
        layer = f"{LANGUAGE}layers.{number}."
        x = x + functional.linear(attended, self._of(f"{layer}self_attn.o_proj{twin}.weight"))
        y = self._norm(x, f"{layer}post_attention_layernorm{twin}.weight")
        gate, up, down = (self._of(f"{layer}mlp{twin}.{part}_proj.weight") for part in ("gate", "up", "down"))
        return x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._of(name)
        return functional.rms_norm(x, weight.shape, weight, self.config.language.norm_eps)

    def _of(self, name: str) -> torch.Tensor:
        return self._weights[name]


def _turned(heads: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
