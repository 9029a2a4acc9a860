"""Batches of demonstrations as the network sees them: pictures are drawn and prompts written when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from policies.pi05.normalization import Normalizer, read_norm_stats
from policies.pi05.text import load_tokenizer, prompt_with_state, state_bins
from policies.pi05.train.demonstrations import MAX_PREFIX_DELAY, Demonstrations
from policies.pi05.train.files import STATISTICS, TOKENIZER
from policies.pi05.train.vocabulary import FIRST_NUMBER_ID, NUMBERS, PAD_ID, VOCAB_SIZE
from sim_bridge.camera import draw_tabletop, draw_wrist_view
from sim_bridge.instruction_tasks import TASKS

_SHARE_WITHOUT_PREFIX = 0.6
"""Of the samples whose actions are the undisturbed expert's; the others' first actions are given, as in chunking."""


@dataclass(frozen=True)
class Context:
    """What a chunk depends on: images [B, C, 3, 64, 64] in [-1, 1], ids [B, L] int64, id_mask [B, L] bool."""

    images: torch.Tensor
    ids: torch.Tensor
    id_mask: torch.Tensor

    @property
    def image_mask(self) -> torch.Tensor:
        return torch.ones(self.images.shape[:2], dtype=torch.bool)


@dataclass(frozen=True)
class Batch:
    """context of B samples; actions [B, H, 2] normalised; prefix [B]: how many of the actions are given."""

    context: Context
    actions: torch.Tensor
    prefix: torch.Tensor


class Prompts:
    """The token ids of prompts, as the served policy writes them; what does not change is tokenised once."""

    def __init__(self, tokenizer_path: Path) -> None:
        self._tokenizer = load_tokenizer(str(tokenizer_path), VOCAB_SIZE)
        self._templates: dict[str, NDArray[np.int64]] = {}

    def ids(self, instructions: list[str], states: NDArray[np.float64]) -> tuple[torch.Tensor, torch.Tensor]:
        """instructions [B], states [B, S] normalised -> ids [B, L], and which of them are not padding."""
        rows = [self._row(*one) for one in zip(instructions, states, strict=True)]
        length = max(map(len, rows))
        ids = np.full((len(rows), length), PAD_ID, np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        mask = np.arange(length) < np.array([len(row) for row in rows])[:, None]
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def _row(self, instruction: str, state: NDArray[np.float64]) -> NDArray[np.int64]:
        if instruction not in self._templates:
            blank = prompt_with_state(instruction, np.zeros_like(state))
            self._templates[instruction] = np.array([self._tokenizer.begin_id, *self._tokenizer.encode(blank)])
        row = self._templates[instruction].copy()
        numbers = (row >= FIRST_NUMBER_ID) & (row < FIRST_NUMBER_ID + len(NUMBERS))
        row[numbers] = np.array(state_bins(state)) - NUMBERS.start + FIRST_NUMBER_ID
        return row


class Batches:
    """Draws batches from demonstrations."""

    def __init__(self, demonstrations: Demonstrations, folder: Path) -> None:
        """`folder` has the tokenizer and the statistics."""
        self._demonstrations = demonstrations
        self._prompts = Prompts(folder / TOKENIZER)
        stats = read_norm_stats(folder / STATISTICS)
        assert stats.state is not None
        assert stats.actions is not None
        self._state, self._action = Normalizer(stats.state, "quantile"), Normalizer(stats.actions, "quantile")
        self._phrasings = [task.phrasings for task in TASKS.values()]

    def draw(self, size: int, rng: np.random.Generator) -> Batch:
        return self.of(rng.integers(len(self._demonstrations), size=size), rng)

    def of(self, index: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """The samples of these indices, in one of their task's phrasings, the task's own as often as all others."""
        data = self._demonstrations
        effector, puck = data.effector[index], data.puck[index]
        states = torch.from_numpy(effector.astype(np.float64))
        instructions = [self._phrasing(task, rng) for task in data.task[index]]
        ids, mask = self._prompts.ids(instructions, self._state.normalise(states).numpy())
        relative = torch.from_numpy(data.actions[index]).double() - states[:, None]
        return Batch(
            Context(draw_images(effector, puck), ids, mask),
            self._action.normalise(relative).float(),
            torch.from_numpy(_prefix(data.prefix[index].astype(np.int64), rng)),
        )

    def _phrasing(self, task: int, rng: np.random.Generator) -> str:
        phrasings = self._phrasings[task]
        other = int(rng.integers(1, len(phrasings)))
        return phrasings[other if rng.random() < 0.5 else 0]


def _prefix(disturbed: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    drawn = rng.integers(1, MAX_PREFIX_DELAY + 1, size=len(disturbed))
    drawn[rng.random(len(disturbed)) < _SHARE_WITHOUT_PREFIX] = 0
    return np.where(disturbed > 0, disturbed, drawn)


def draw_images(effector: NDArray[np.float32], puck: NDArray[np.float32]) -> torch.Tensor:
    """Places [B, 2] -> both cameras' pictures [B, 2, 3, 64, 64], in [-1, 1]."""
    views = [
        (draw_tabletop(*places), draw_wrist_view(*places)) for places in zip(effector, puck, strict=True)
    ]  # fmt: skip
    return torch.from_numpy(np.array(views)).permute(0, 1, 4, 2, 3).contiguous().float() / 255 * 2 - 1
