"""Batches of what is learned, laid out as requests are: what is left out here is what guidance leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from generators.bagel.train import lessons
from generators.bagel.train.bank import Bank
from generators.bagel.train.dimensions import THINK_PROMPT
from generators.bagel.train.pictures import to_pixels
from generators.bagel.train.sequences import Row, Sequences, batched
from generators.bagel.train.vocabulary import Vocabulary
from sim_bridge.shapes import Scene, draw

SHARE_LEFT_OUT = 0.12
"""Of requests that are learned without what one of the guidance branches does not see."""


@dataclass(frozen=True)
class BatchSizes:
    """Rows of each kind, and branches of a row: `draws` of noise, `questions` about one picture besides the one that is
    always asked."""

    prompts: int = 7
    prompt_draws: int = 4
    thoughts: int = 3
    thought_draws: int = 2
    edits: int = 9
    edit_draws: int = 2
    pictures: int = 28
    questions: int = 1
    chats: int = 2


@dataclass(frozen=True)
class Batch:
    """latents [M, T, D]: clean; is_noise [M]: whether to be learned from noise; pixels [P, 3, H, W] or None."""

    sequences: Sequences
    latents: torch.Tensor
    is_noise: torch.Tensor
    pixels: torch.Tensor | None


Write = Callable[["_Sheet", np.random.Generator], None]
"""Writes one row."""


class Batches:
    def __init__(self, bank: Bank, vocabulary: Vocabulary, num_tokens: int, sizes: BatchSizes) -> None:
        """`num_tokens`: of an image, for the vision tower and as latents."""
        self._bank, self._vocabulary, self._num_tokens, self._sizes = bank, vocabulary, num_tokens, sizes

    def draw(self, rng: np.random.Generator) -> list[Batch]:
        """What one step learns: requests of similar length are in one batch."""
        sizes = self._sizes
        drawing = self._batch(rng, (sizes.prompts, self._prompt), (sizes.thoughts, self._thought))
        editing = self._batch(rng, (sizes.edits, self._edit))
        speaking = self._batch(rng, (sizes.pictures, self._questions), (sizes.chats, self._chat))
        return [drawing, editing, speaking]

    def _batch(self, rng: np.random.Generator, *kinds: tuple[int, Write]) -> Batch:
        sheet = _Sheet(self._vocabulary, self._num_tokens)
        for count, write in kinds:
            for _ in range(count):
                write(sheet, rng)
        return sheet.batch(self._bank)

    def _prompt(self, sheet: _Sheet, rng: np.random.Generator) -> None:
        """[text] noise; without guidance's text nothing is before the noise."""
        row = sheet.row()
        wanted, text = lessons.prompt(self._bank.draw(rng), rng)
        if rng.random() >= SHARE_LEFT_OUT:
            row.text(text)
        else:
            wanted = Scene("", "", "", "", "")
        for branch in range(1, self._sizes.prompt_draws + 1):
            row.latents(sheet.noise(self._bank.draw_like(wanted, rng)), branch)

    def _thought(self, sheet: _Sheet, rng: np.random.Generator) -> None:
        """[think prompt][text][thought] noise; without guidance's text the think prompt alone is before the noise."""
        row = sheet.row().text(THINK_PROMPT)
        scene = self._bank.draw(rng)
        wanted, text = lessons.vague_prompt(scene, rng)
        chance = rng.random()
        if chance < SHARE_LEFT_OUT:
            wanted = Scene("", "", "", "", "")
        else:
            row.text(text)
        if chance >= 2 * SHARE_LEFT_OUT:
            wanted = replace(scene, shift=(0.0, 0.0))
            row.text(lessons.thought(scene), is_learned=True)
        for branch in range(1, self._sizes.thought_draws + 1):
            row.latents(sheet.noise(self._bank.draw_like(wanted, rng)), branch)

    def _edit(self, sheet: _Sheet, rng: np.random.Generator) -> None:
        """[latents][vision][text] noise, without the text, or without the images."""
        row = sheet.row()
        before = self._bank.draw(rng)
        change = lessons.edit(before, rng)
        chance = rng.random()
        if chance >= SHARE_LEFT_OUT:
            row.latents(sheet.clean(before)).look(sheet.picture(before))
        if not SHARE_LEFT_OUT <= chance < 2 * SHARE_LEFT_OUT:
            row.text(change.text)
        for branch in range(1, self._sizes.edit_draws + 1):
            row.latents(sheet.noise(change.after), branch)

    def _questions(self, sheet: _Sheet, rng: np.random.Generator) -> None:
        """[vision][question] answer. What is in the picture is always asked: that answer says most about it."""
        scene = self._bank.draw(rng)
        row = sheet.row().look(sheet.picture(scene))
        *others, everything = lessons.QUESTIONS
        asked = [everything, *map(str, rng.permutation(others)[: self._sizes.questions])]
        for branch, question in enumerate(asked, 1):
            row.text(question, branch).text(lessons.answer(question, scene), branch, is_learned=True)

    def _chat(self, sheet: _Sheet, rng: np.random.Generator) -> None:
        row = sheet.row()
        for branch, (question, answer) in enumerate(
            rng.permutation(list(lessons.CHAT.items()))[: self._sizes.questions], 1
        ):
            row.text(question, branch).text(answer, branch, is_learned=True)


class _Sheet:
    """The rows of one batch and the images that they name."""

    def __init__(self, vocabulary: Vocabulary, num_tokens: int) -> None:
        self._vocabulary, self._num_tokens = vocabulary, num_tokens
        self._rows: list[Row] = []
        self._latents: list[tuple[Scene, bool]] = []
        self._pictures: list[Scene] = []

    def row(self) -> Row:
        self._rows.append(Row(self._vocabulary, self._num_tokens))
        return self._rows[-1]

    def noise(self, scene: Scene) -> int:
        self._latents.append((scene, True))
        return len(self._latents) - 1

    def clean(self, scene: Scene) -> int:
        self._latents.append((scene, False))
        return len(self._latents) - 1

    def picture(self, scene: Scene) -> int:
        self._pictures.append(scene)
        return len(self._pictures) - 1

    def batch(self, bank: Bank) -> Batch:
        return Batch(
            batched(self._rows, self._num_tokens),
            bank.latents([scene for scene, _ in self._latents]),
            torch.tensor([is_noise for _, is_noise in self._latents]),
            to_pixels(np.array([draw(scene) for scene in self._pictures])) if self._pictures else None,
        )
