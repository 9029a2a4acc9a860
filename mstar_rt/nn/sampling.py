"""Drawing the next token from the scores of a language model.

Every row is worked on alone, with operations that do not know of the others, so a request draws the same token, bit for
bit, whoever shares its step. What is heavy is linear in the vocabulary; only tokens that can be drawn are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class Sampling(NamedTuple):
    """`temperature` 0 takes the likeliest token. Of the rest `top_k` keeps the likeliest so many (0: all; more where
    scores are equal), then `top_p` the fewest likeliest that have this share of the probability, at least one. Scores
    of tokens that were seen are made lower by `repetition_penalty`: divided if positive, else multiplied.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


class Row(NamedTuple):
    """How to draw from one row. `seen` int64 [T]: its tokens so far. `uniform` gives a number from 0 to below 1, and is
    asked once if the temperature is not 0."""

    sampling: Sampling
    seen: torch.Tensor
    uniform: Callable[[], float]


def draw(scores: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """scores float32 [B, V], which are changed -> a token for each row."""
    penalised = [_penalise(row_scores, row) for row_scores, row in zip(scores, rows, strict=True)]
    return [_draw(row_scores, row) for row_scores, row in zip(penalised, rows, strict=True)]


def uniform_of(generator: torch.Generator) -> float:
    """From 0 to below 1, with 53 bits."""
    return torch.rand((), generator=generator, dtype=torch.float64).item()


def _penalise(scores: torch.Tensor, row: Row) -> torch.Tensor:
    penalty = row.sampling.repetition_penalty
    if penalty != 1:
        seen = scores[row.seen]
        scores[row.seen] = torch.where(seen > 0, seen / penalty, seen * penalty)
    return scores


def _draw(scores: torch.Tensor, row: Row) -> int:
    if row.sampling.temperature == 0:
        return int(scores.argmax())
    weights = ((scores - scores.max()) / row.sampling.temperature).exp_()
    tokens, kept = _kept(scores, weights, row.sampling)
    shares = kept.cumsum(0)
    total = float(shares[-1])
    assert math.isfinite(total), "a language model gave scores that are not finite"
    index = int(torch.searchsorted(shares, row.uniform() * total, right=True))
    index = min(index, len(shares) - 1)
    return index if tokens is None else int(tokens[index])


def _kept(scores: torch.Tensor, weights: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The tokens that may be drawn, None: all in their order; and their weights, float64."""
    tokens = None
    if 0 < sampling.top_k < len(scores):
        least = scores.topk(sampling.top_k).values[-1]
        tokens = (scores >= least).nonzero().flatten()
    if sampling.top_p == 1:
        return tokens, (weights if tokens is None else weights[tokens]).double()
    total = (weights if tokens is None else weights[tokens]).sum(dtype=torch.float64)
    if tokens is None:
        # Tokens below an equal share of what may be left out cannot have more than that together.
        tokens = (weights >= float(total) * (1 - sampling.top_p) / len(weights) * 0.999).nonzero().flatten()
    ordered, order = weights[tokens].double().sort(descending=True, stable=True)
    shares = ordered.cumsum(0)
    count = int(torch.searchsorted(shares, total * sampling.top_p)) + 1
    return tokens[order[:count]], ordered[:count]
