"""BAGEL's contexts without the nodes: what is read after what, written out from the description of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from generators.bagel.backbone import Backbone
from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.model import KVSpec
from mstar_rt.nn.attention import AttentionStep, StepKind
from mstar_rt.nn.attention_cpu import CpuAttention

Grid = tuple[int, int]


@dataclass
class Context:
    """`position`: of the next token or block."""

    table: PageTable
    position: int = 0

    def fork(self) -> Context:
        return Context(self.table.fork(), self.position)


class Contexts:
    """Contexts in one pool, whose pages are small, so that most things that are read cross some."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        language = backbone.config.language
        spec = KVSpec(language.depth, language.num_kv_heads, language.head_dim, 16, 512)
        self.pool = KVPool(spec, num_pages=128, dtype=backbone.dtype)
        self._attention = CpuAttention(self.pool)

    def new(self) -> Context:
        return Context(self.pool.new_table())

    def read_texts(self, contexts: Sequence[Context], texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """One step -> the scores behind every token, texts one after the other."""
        steps = [AttentionStep(each.table, len(ids), StepKind.CAUSAL_APPEND) for each, ids in zip(contexts, texts)]
        places = [torch.arange(each.position, each.position + len(ids)) for each, ids in zip(contexts, texts)]
        x = self.backbone.embed(torch.tensor([number for ids in texts for number in ids]))
        scores = self.backbone.scores(self._read(x, torch.cat(places), steps))
        for context, ids in zip(contexts, texts):
            context.position += len(ids)
        return scores

    def read_image(self, context: Context, tokens: torch.Tensor) -> None:
        """tokens [P, W] of the vision tower, as one block with the tokens around them."""
        first, last = self.backbone.borders
        x = torch.cat([first[None], tokens, last[None]])
        step = AttentionStep(context.table, len(x), StepKind.BLOCK_APPEND)
        self._read(x, torch.full((len(x),), context.position), [step])
        context.position += 1

    def read_latents(self, context: Context, tokens: torch.Tensor, grid: Grid) -> None:
        """tokens [T, latent_dim] of an image that is there already: its time is 0."""
        self._latents([context], tokens[None], 0.0, grid, StepKind.BLOCK_APPEND)
        context.position += 1

    def velocity(self, contexts: Sequence[Context], x: torch.Tensor, time: float, grid: Grid) -> torch.Tensor:
        """x [B, T, latent_dim] at one flow time, one image in each context -> [B, T, latent_dim]. Leaves nothing."""
        return self.backbone.velocity(self._latents(contexts, x, time, grid, StepKind.TRANSIENT_BLOCK))

    def _read(self, x: torch.Tensor, positions: torch.Tensor, steps: Sequence[AttentionStep]) -> torch.Tensor:
        return self.backbone.read(x, positions, int(positions.max()), self._attention.plan(steps))

    def _latents(
        self, contexts: Sequence[Context], tokens: torch.Tensor, time: float, grid: Grid, kind: StepKind
    ) -> torch.Tensor:
        plan = self._attention.plan([AttentionStep(each.table, tokens.shape[1] + 2, kind) for each in contexts])
        positions = torch.tensor([each.position for each in contexts])
        x = self.backbone.latents_in(tokens, torch.full((len(contexts),), time), grid)
        return self.backbone.read_latents(x, positions, int(positions.max()), plan)
