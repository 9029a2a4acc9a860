"""The language model, every layer of which has weights of its own for latents, and what turns latents into its tokens.

Text, images that are looked at and the two tokens around a block of latents go through the usual weights (`und`),
latents through the other ones (`gen`); all attend to each other through the same heads.
Source: arXiv 2505.14683, and the published weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from generators.bagel.config import BagelConfig, LanguageConfig
from generators.bagel.embedders import PositionTable, TimeEmbedder
from mstar_rt.nn.checkpoint import Rows
from mstar_rt.nn.decoder import Attend, GatedMlp, Product
from mstar_rt.nn.linear import Linear
from mstar_rt.nn.packed_linear import PackedLinear
from mstar_rt.nn.rms_norm import NormKind, RMSNorm, normed
from mstar_rt.nn.rope import Rotary, rotate_halves

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, [..., heads, head_dim] each; queries and keys are rotated."""


class MotAttention(nn.Module):
    """Weights with biases, and norms of queries and keys; one product for queries, keys and values."""

    def __init__(self, config: LanguageConfig, kind: NormKind) -> None:
        super().__init__()
        num_heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv_proj = Linear(config.width, num_heads * config.head_dim)
        self.q_norm = RMSNorm(config.head_dim, kind)
        self.k_norm = RMSNorm(config.head_dim, kind)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.width, bias=False)


class Expert(nn.Module):
    """One set of the weights of a layer."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        kind = NormKind(config.norm_eps, offset=0.0)
        self.config = config
        self.input_layernorm = RMSNorm(config.width, kind)
        self.self_attn = MotAttention(config, kind)
        self.post_attention_layernorm = RMSNorm(config.width, kind)
        self.mlp = GatedMlp(config.width, config.mlp_dim)

    def parts(self, prepare: Callable[[Linear], Product]) -> ExpertParts:
        attention, config = self.self_attn, self.config
        norms = ((attention.q_norm, config.num_heads), (attention.k_norm, config.num_kv_heads))
        return ExpertParts(
            self.input_layernorm.weight,
            prepare(attention.qkv_proj),
            torch.cat([norm.weight.expand(num_heads, -1) for norm, num_heads in norms]),
            prepare(attention.o_proj),
            self.post_attention_layernorm.weight,
            prepare(self.mlp.gate_proj),
            prepare(self.mlp.up_proj),
            prepare(self.mlp.down_proj),
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            self.input_layernorm.kind,
        )


class ExpertParts(NamedTuple):
    """What an expert computes with. `norm_heads` [query heads + key heads, head_dim] scales queries and keys."""

    norm_before: torch.Tensor
    qkv: Product
    norm_heads: torch.Tensor
    output: Product
    norm_between: torch.Tensor
    gate: Product
    up: Product
    down: Product
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_kind: NormKind

    def project(self, x: torch.Tensor, turn: torch.Tensor) -> Heads:
        """x [..., W]; turn: rotary table of the tokens' positions."""
        heads = self.qkv(normed(x, self.norm_before, None, self.norm_kind)).unflatten(-1, (-1, self.head_dim))
        num_turned = self.num_heads + self.num_kv_heads
        turned = functional.rms_norm(heads[..., :num_turned, :].float(), (self.head_dim,), None, self.norm_kind.eps)
        turned = rotate_halves((turned * self.norm_heads).to(x.dtype), turn)
        return turned[..., : self.num_heads, :], turned[..., self.num_heads :, :], heads[..., num_turned:, :]

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x [..., W] and what its tokens attended to [..., heads * head_dim] -> what the next layer gets."""
        x = self.output(attended, residual=x)
        y = normed(x, self.norm_between, None, self.norm_kind)
        return self.down(self.up(y, factor=self.gate(y, activation="silu")), residual=x)


class MotLayer(nn.Module):
    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.und = Expert(config)
        self.gen = Expert(config)

    def forward(
        self,
        und: torch.Tensor,
        gen: torch.Tensor | None,
        turns: tuple[torch.Tensor, torch.Tensor | None],
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """und [B, Nu, W], gen [B, Ng, W]; `attend` has the tokens in that order."""
        of_und = self.und.parts(_as_it_is)
        if gen is None or turns[1] is None:
            return of_und.finish(und, attend(*of_und.project(und, turns[0])).flatten(-2)), None
        of_gen = self.gen.parts(_as_it_is)
        heads = zip(of_und.project(und, turns[0]), of_gen.project(gen, turns[1]), strict=True)
        q, k, v = (torch.cat(pair, dim=1) for pair in heads)
        attended = attend(q, k, v).flatten(-2)
        return of_und.finish(und, attended[:, : und.shape[1]]), of_gen.finish(gen, attended[:, und.shape[1] :])


class MotNetwork(nn.Module):
    """All of the published model but its vision tower. `lm_head` is None where the embedding is the head."""

    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        self.config = config
        language = config.language
        kind = NormKind(language.norm_eps, offset=0.0)
        self.embed_tokens = nn.Embedding(language.vocab_size, language.width)
        self.layers = nn.ModuleList(MotLayer(language) for _ in range(language.depth))
        self.norm = RMSNorm(language.width, kind)
        self.norm_moe_gen = RMSNorm(language.width, kind)
        self.lm_head = None if language.is_tied else Linear(language.width, language.vocab_size, bias=False)
        self.vae2llm = Linear(config.latent_dim, language.width)
        self.llm2vae = Linear(language.width, config.latent_dim)
        self.time_embedder = TimeEmbedder(language.width)
        self.latent_pos_embed = PositionTable(language.width, config.max_latent_side)
        self.rotary = Rotary(language.head_dim, language.rope_base)

    def forward_dense(
        self,
        und: torch.Tensor,
        gen: torch.Tensor | None,
        und_positions: torch.Tensor,
        gen_positions: torch.Tensor | None,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All layers at once, without a cache; differentiable.

        Args:    und [B, Nu, W], gen [B, Ng, W]; their rope positions int64 [B, Nu] and [B, Ng]. mask bool
                 [B, 1, Nu + Ng, Nu + Ng]: True where a token (row) sees another one; each sees something.
        Returns: the like of und and gen, which `scores` and `velocity` take.
        """
        last = max(int(p.max()) for p in (und_positions, gen_positions) if p is not None)
        turns = (
            self.rotary.at(und_positions, last),
            None if gen_positions is None else self.rotary.at(gen_positions, last),
        )
        attend = masked_attention(mask)
        for layer in self.layers:
            und, gen = layer(und, gen, turns, attend)
        return und, gen

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(ids)

    def scores(self, und: torch.Tensor) -> torch.Tensor:
        """[..., W] -> scores of the next token [..., V]."""
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return functional.linear(self.norm(und), head)

    def latents_in(self, tokens: torch.Tensor, times: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """tokens [B, T, latent_dim] at flow times [B], T of a grid (rows, columns) -> [B, T, W]."""
        x = self.vae2llm(tokens.to(self.vae2llm.weight.dtype))
        return x + self.time_embedder(times)[:, None] + self.latent_pos_embed(grid)

    def velocity(self, gen: torch.Tensor) -> torch.Tensor:
        """[..., W] -> noise less data [..., latent_dim], float32."""
        return self.llm2vae(self.norm_moe_gen(gen)).float()


def masked_attention(mask: torch.Tensor) -> Attend:
    """mask bool [B, 1, N, N]: True where a query (row) sees a key."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_groups = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(num_groups, dim=2).transpose(1, 2) for x in (k, v))
        return functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask).transpose(1, 2)

    return attend


LAYER = re.compile(r"^layers\.(\d+)\.(und|gen)\.(.+)\.(weight|bias)$")
LANGUAGE = "language_model.model."
OUTSIDE = ("vae2llm.", "llm2vae.", "time_embedder.", "latent_pos_embed.")
"""How keys begin that are the same in the file."""


def published(key: str, config: BagelConfig) -> Sequence[str] | Sequence[Rows]:
    """Under which keys the published layout holds our parameter `key`."""
    if key.startswith(OUTSIDE):
        return (key,)
    if key.startswith("lm_head."):
        return (f"language_model.{key}",)
    found = LAYER.match(key)
    if found is None:
        return (LANGUAGE + key,)
    number, expert, name, kind = found.groups()
    twin = "_moe_gen" if expert == "gen" else ""
    part, _, last = name.partition(".")
    where = f"{LANGUAGE}layers.{number}."
    if part == "mlp":
        return (f"{where}mlp{twin}.{last}.{kind}",)
    if part != "self_attn":
        return (f"{where}{part}{twin}.{kind}",)
    if last != "qkv_proj":
        return (f"{where}self_attn.{last}{twin}.{kind}",)
    language = config.language
    heads = {"q": language.num_heads, "k": language.num_kv_heads, "v": language.num_kv_heads}
    return [Rows(f"{where}self_attn.{each}_proj{twin}.{kind}", n * language.head_dim) for each, n in heads.items()]


class PackedLayer(NamedTuple):
    und: ExpertParts
    gen: ExpertParts


def packed_layers(network: MotNetwork) -> list[PackedLayer]:
    """For inference alone. Takes the weights over, layer by layer: `network` has no layers any more."""
    layers = []
    while len(network.layers):
        layer = network.layers.pop(0)
        assert isinstance(layer, MotLayer)
        with torch.no_grad():
            layers.append(PackedLayer(layer.und.parts(PackedLinear.of), layer.gen.parts(PackedLinear.of)))
    return layers


def _as_it_is(layer: Linear) -> Linear:
    return layer
