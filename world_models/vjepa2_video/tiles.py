"""A clip through transformer blocks tile by tile, for steps that must be short.

All tokens see all tokens, so a block takes two rounds over the tiles of a clip: queries, keys and values of every tile,
then what each tile attends to, and its MLP. The tiles of all rounds are items, to be done in any number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from mstar_rt.nn.rope3d import Rotation
from mstar_rt.nn.vit import Block, dense_attention

TILE = 128
"""Tokens. Half as many make matrix products too thin to be fast on a CPU."""
ROUNDS_PER_BLOCK = 2


class Tiled(NamedTuple):
    """Where a clip stands: the tokens [N, D] that the current round reads, the queries, keys and values [3, N, heads,
    head_dim] of its block, and the tokens [N, D'] that it, or the last round that did, gives.

    A round begins with new tensors and fills them tile by tile. What it reads stays as it is, so a tile that is done
    twice is as if done once.
    """

    tokens: torch.Tensor
    heads: torch.Tensor
    after: torch.Tensor


def begun(tokens: torch.Tensor) -> Tiled:
    """Before the first round."""
    return Tiled(tokens, tokens, tokens)


def num_items(num_rounds: int, num_tokens: int) -> int:
    return num_rounds * _num_tiles(num_tokens)


def rounds(part: range, num_tokens: int) -> Iterator[tuple[int, slice]]:
    """The items of a part, those of one round at once: (number of the round, tokens)."""
    per_round, item = _num_tiles(num_tokens), part.start
    while item < part.stop:
        number = item // per_round
        stop = min(part.stop, (number + 1) * per_round)
        yield number, slice((item - number * per_round) * TILE, min((stop - number * per_round) * TILE, num_tokens))
        item = stop


def block_round(state: Tiled, blocks: Sequence[Block], number: int, rows: slice, rotation: Rotation) -> Tiled:
    """Some tokens in a round of the blocks, `ROUNDS_PER_BLOCK` for each.

    Args: rotation: tables of these tokens, over (query or key, head).
    """
    block = blocks[number // ROUNDS_PER_BLOCK]
    return _attend(state, block, rows) if number % ROUNDS_PER_BLOCK else _project(state, block, rows, rotation)


def next_round(state: Tiled, rows: slice) -> Tiled:
    """A round that begins, with the first token, reads what the one before gave."""
    return state if rows.start else state._replace(tokens=state.after)


def filled(state: Tiled, rows: slice, values: torch.Tensor) -> Tiled:
    """`values` [rows, D'] as what the round gives; it begins with the first token."""
    after = values.new_empty(len(state.tokens), values.shape[1]) if rows.start == 0 else state.after
    after[rows] = values
    return state._replace(after=after)


def _project(state: Tiled, block: Block, rows: slice, rotation: Rotation) -> Tiled:
    state = next_round(state, rows)
    tokens, heads = state.tokens, state.heads
    if rows.start == 0:
        heads = tokens.new_empty(3, len(tokens), block.attn.num_heads, block.attn.head_dim)
    for of_all, of_rows in zip(heads, block.attn.projected(tokens[rows], block.norm1, rotation), strict=True):
        of_all[rows] = of_rows
    return state._replace(heads=heads)


def _attend(state: Tiled, block: Block, rows: slice) -> Tiled:
    q, k, v = state.heads
    attended = dense_attention()(q[None, rows], k[None], v[None])[0]
    return filled(state, rows, block.mlp(block.attn.joined(state.tokens[rows], attended), block.norm2))


def _num_tiles(num_tokens: int) -> int:
    return -(-num_tokens // TILE)
