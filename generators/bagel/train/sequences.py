"""Sequences of text and images as the backbone reads them when it serves, several samples in a batch.

A row has a trunk, and branches that grow from its end and do not see each other: noise at several times, or several
questions about one picture, over one reading of what they share. A text sees what is before it; an image sees itself
whole; noise sees itself and the trunk. An image with the two tokens around it has one rope position.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from generators.bagel.train.vocabulary import Vocabulary

NO_LABEL = -100
TRUNK = 0
_PADDING = -1


@dataclass
class _Tokens:
    """Of one row and one set of weights, one entry a token each. `source`: the token's id; or for latents and what the
    vision tower gives the number of the image in the batch and of the token in it."""

    source: list[tuple[int, int]] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)


class Row:
    """One sequence, written from its beginning; what is in a branch comes after the whole trunk."""

    def __init__(self, vocabulary: Vocabulary, num_tokens: int) -> None:
        """`num_tokens`: of an image, for the vision tower and as latents."""
        self._vocabulary, self._num_tokens = vocabulary, num_tokens
        self.und, self.gen = _Tokens(), _Tokens()
        self._num_blocks = 0
        self._next = {TRUNK: 0}

    def copy(self) -> Row:
        """To be written further, without this one."""
        other = Row(self._vocabulary, self._num_tokens)
        other.und, other.gen = copy.deepcopy((self.und, self.gen))
        other._num_blocks, other._next = self._num_blocks, dict(self._next)
        return other

    def text(self, words: str, branch: int = TRUNK, is_learned: bool = False) -> Row:
        """Wrapped in its two tokens; `is_learned`: each of its tokens is to foretell the next."""
        return self.ids(self._vocabulary.wrapped(words), branch, is_learned)

    def ids(self, ids: list[int], branch: int = TRUNK, is_learned: bool = False) -> Row:
        block, start = self._block(branch, len(ids))
        following = [*ids[1:], NO_LABEL] if is_learned else [NO_LABEL] * len(ids)
        for index, (token, label) in enumerate(zip(ids, following, strict=True)):
            self._add(self.und, (token, -1), start + index, block, index, branch, label)
        return self

    def look(self, image: int) -> Row:
        """An image through the vision tower; `image`: its number in the batch."""
        block, start = self._block(TRUNK, 1)
        self._around(start, block, TRUNK)
        for index in range(self._num_tokens):
            self._add(self.und, (image, index), start, block, 0, TRUNK, NO_LABEL)
        return self

    def latents(self, image: int, branch: int = TRUNK) -> Row:
        """Latents, clean ones in the trunk and noise in a branch."""
        block, start = self._block(branch, 1)
        self._around(start, block, branch)
        for index in range(self._num_tokens):
            self._add(self.gen, (image, index), start, block, 0, branch, NO_LABEL)
        return self

    def _around(self, start: int, block: int, branch: int) -> None:
        for token in (self._vocabulary.begin_image, self._vocabulary.end_image):
            self._add(self.und, (token, -1), start, block, 0, branch, NO_LABEL)

    def _block(self, branch: int, num_positions: int) -> tuple[int, int]:
        start = self._next.setdefault(branch, self._next[TRUNK])
        self._next[branch] = start + num_positions
        self._num_blocks += 1
        return self._num_blocks, start

    @staticmethod
    def _add(
        tokens: _Tokens, source: tuple[int, int], position: int, block: int, order: int, branch: int, label: int
    ) -> None:
        tokens.source.append(source)
        tokens.position.append(position)
        tokens.block.append(block)
        tokens.order.append(order)
        tokens.branch.append(branch)
        tokens.label.append(label)


@dataclass(frozen=True)
class Sequences:
    """B rows, padded: und and gen tokens as `MotNetwork.forward_dense` takes them.

    ids [B, Nu]: of texts; looks [B, Nu]: number of the vision tower's token among all, -1 where it is a text's;
    latents [B, Ng]: number of the latents' token among all; labels [B, Nu], NO_LABEL where nothing is learned;
    is_noise bool [B, Ng]: latents in a branch; mask [B, 1, Nu + Ng, Nu + Ng].
    """

    ids: torch.Tensor
    looks: torch.Tensor
    latents: torch.Tensor
    und_positions: torch.Tensor
    gen_positions: torch.Tensor
    labels: torch.Tensor
    is_noise: torch.Tensor
    mask: torch.Tensor


def batched(rows: list[Row], num_tokens: int) -> Sequences:
    """`num_tokens`: of an image."""
    und, gen = [row.und for row in rows], [row.gen for row in rows]
    source, gen_source = _padded(und, "source", (0, -1)), _padded(gen, "source", (0, 0))
    is_text = source[..., 1] < 0
    return Sequences(
        ids=torch.from_numpy(np.where(is_text, source[..., 0], 0)),
        looks=torch.from_numpy(np.where(is_text, -1, source[..., 0] * num_tokens + source[..., 1])),
        latents=torch.from_numpy(gen_source[..., 0] * num_tokens + gen_source[..., 1]),
        und_positions=torch.from_numpy(_padded(und, "position", 0)),
        gen_positions=torch.from_numpy(_padded(gen, "position", 0)),
        labels=torch.from_numpy(_padded(und, "label", NO_LABEL)),
        is_noise=torch.from_numpy(_padded(gen, "branch", _PADDING) > TRUNK),
        mask=torch.from_numpy(_mask(*(_both(und, gen, name) for name in ("block", "order", "branch")))),
    )


def _mask(block: NDArray[np.int64], order: NDArray[np.int64], branch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[B, N] each -> [B, 1, N, N]. Padding sees itself."""
    q, k = np.s_[:, :, None], np.s_[:, None, :]
    is_reachable = (branch[k] == TRUNK) | (branch[k] == branch[q])
    is_before = (block[k] < block[q]) | ((block[k] == block[q]) & (order[k] <= order[q]))
    sees = is_reachable & is_before & (block[k] != _PADDING)
    sees |= np.eye(block.shape[1], dtype=bool)
    return sees[:, None]


def _both(und: list[_Tokens], gen: list[_Tokens], name: str) -> NDArray[np.int64]:
    return np.concatenate([_padded(tokens, name, _PADDING) for tokens in (und, gen)], axis=1)


def _padded(rows: list[_Tokens], name: str, filling: int | tuple[int, int]) -> NDArray[np.int64]:
    values = [getattr(row, name) for row in rows]
    longest = max(map(len, values))
    shape = (len(rows), longest) if isinstance(filling, int) else (len(rows), longest, len(filling))
    padded = np.full(shape, filling, np.int64)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = np.array(value, np.int64).reshape(len(value), *shape[2:])
    return padded
