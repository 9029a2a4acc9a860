"""Images and words in process, without a server or a cache: what the served model is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from generators.bagel.autoencoder import Autoencoder, from_tokens, to_tokens
from generators.bagel.config import BagelConfig
from generators.bagel.guidance import branches_at
from generators.bagel.renormalization import guided
from generators.bagel.schedule import times_of
from generators.bagel.train.dimensions import THINK_PROMPT
from generators.bagel.train.flow_training import BothNetworks, und_tokens
from generators.bagel.train.pictures import to_pictures, to_pixels
from generators.bagel.train.sequences import Row, batched
from generators.bagel.train.vocabulary import Vocabulary

_MAX_WORDS = 24


class Contexts(NamedTuple):
    """Rows of B requests, [B] each: everything, without the last text, and without images and thought; the last is None
    where it is the first."""

    main: list[Row]
    without_text: list[Row]
    without_image: list[Row] | None


class Painter:
    """The trained networks as they are used: batches of requests of one kind, all steps over dense rows."""

    def __init__(self, both: BothNetworks, autoencoder: Autoencoder, vocabulary: Vocabulary) -> None:
        self._both, self._autoencoder, self._vocabulary = both, autoencoder, vocabulary
        self._config = both.config
        self._num_tokens = both.config.max_latent_side**2

    def draw(self, prompts: Sequence[str], params: Mapping[str, Any], noise: torch.Tensor) -> NDArray[np.uint8]:
        """noise [B, T, D] -> pictures [B, H, W, 3]. `params`: options of text_to_image."""
        contexts = Contexts([self._row().text(text) for text in prompts], [self._row() for _ in prompts], None)
        return self._painted(contexts, params, noise)

    def draw_thought(
        self, prompts: Sequence[str], thoughts: Sequence[str], params: Mapping[str, Any], noise: torch.Tensor
    ) -> NDArray[np.uint8]:
        """The like, of prompts that were planned in words first."""
        contexts = Contexts(
            [self._thinking(text).text(thought) for text, thought in zip(prompts, thoughts, strict=True)],
            [self._row().text(THINK_PROMPT) for _ in prompts],
            [self._thinking(text) for text in prompts],
        )
        return self._painted(contexts, params, noise)

    def edit(
        self, pictures: NDArray[np.uint8], texts: Sequence[str], params: Mapping[str, Any], noise: torch.Tensor
    ) -> NDArray[np.uint8]:
        """pictures [B, H, W, 3] -> the like, changed. `params`: options of edit_image."""
        contexts = Contexts(
            [self._row().latents(index).look(index).text(text) for index, text in enumerate(texts)],
            [self._row().latents(index).look(index) for index in range(len(texts))],
            [self._row().text(text) for text in texts],
        )
        return self._painted(contexts, params, noise, pictures)

    def think(self, prompts: Sequence[str]) -> list[str]:
        return self._written([self._thinking(text) for text in prompts])

    def describe(self, pictures: NDArray[np.uint8], questions: Sequence[str]) -> list[str]:
        rows = [self._row().look(index).text(question) for index, question in enumerate(questions)]
        return self._written(rows, pictures)

    def chat(self, texts: Sequence[str]) -> list[str]:
        return self._written([self._row().text(text) for text in texts])

    @torch.inference_mode()
    def _painted(
        self,
        contexts: Contexts,
        params: Mapping[str, Any],
        noise: torch.Tensor,
        pictures: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        side = self._config.max_latent_side
        clean, pixels = self._encoded(pictures)
        main, text, image = (
            None if rows is None else _View(self._both, rows, clean, pixels, is_drawing=True) for rows in contexts
        )
        assert main is not None
        assert text is not None
        x, times = noise, times_of(params)
        for step, (time, following) in enumerate(pairwise(times)):
            active = branches_at(params, step)
            velocity = main.velocity(x, time)
            without_text = text.velocity(x, time) if active.without_text else None
            without_image = None
            if active.without_image:
                without_image = velocity if image is None else image.velocity(x, time)
            x = x - _guided(velocity, without_text, without_image, params) * (time - following)
        return to_pictures(self._autoencoder.decode(from_tokens(x, (side, side), self._config.latent_patch)))

    @torch.inference_mode()
    def _written(self, rows: list[Row], pictures: NDArray[np.uint8] | None = None) -> list[str]:
        """What follows the rows, the likeliest token each time."""
        _, pixels = self._encoded(pictures)
        written: list[list[int]] = [[self._vocabulary.begin] for _ in rows]
        for _ in range(_MAX_WORDS):
            batch = [row.copy().ids(ids) for row, ids in zip(rows, written, strict=True)]
            view = _View(self._both, batch, None, pixels, is_drawing=False)
            for ids, following in zip(written, view.following(), strict=True):
                if ids[-1] != self._vocabulary.end:
                    ids.append(following)
            if all(ids[-1] == self._vocabulary.end for ids in written):
                break
        return [self._vocabulary.text(ids) for ids in written]

    def _encoded(self, pictures: NDArray[np.uint8] | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if pictures is None:
            return None, None
        pixels = to_pixels(pictures)
        latents = self._autoencoder.latents(self._autoencoder.encode(pixels))
        return to_tokens(latents, self._config.latent_patch), pixels

    def _thinking(self, text: str) -> Row:
        return self._row().text(THINK_PROMPT).text(text)

    def _row(self) -> Row:
        return Row(self._vocabulary, self._num_tokens)


class _View:
    """One context of each of B requests, read again for each answer."""

    def __init__(
        self,
        both: BothNetworks,
        rows: list[Row],
        clean: torch.Tensor | None,
        pixels: torch.Tensor | None,
        is_drawing: bool,
    ) -> None:
        """clean [B, T, D]: latents of the images that rows name, by number; pixels: the same images. `is_drawing`: with
        noise after the rows."""
        self._network, self._side = both.network, both.config.max_latent_side
        self._clean = torch.empty(0, self._side**2, both.config.latent_dim) if clean is None else clean
        self._last = [len(row.und.source) - 1 for row in rows]
        if is_drawing:
            rows = [row.copy().latents(len(self._clean) + index, branch=1) for index, row in enumerate(rows)]
        self._sequences = batched(rows, self._side**2)
        self._und = und_tokens(both, self._sequences, pixels)

    def velocity(self, x: torch.Tensor, time: float) -> torch.Tensor:
        """x [B, T, D] at one time -> the like."""
        sequences, num_clean = self._sequences, len(self._clean)
        times = torch.tensor([0.0] * num_clean + [time] * len(x))
        latents = self._network.latents_in(torch.cat([self._clean, x]), times, (self._side, self._side))
        _, gen = self._network.forward_dense(
            self._und,
            latents.flatten(0, 1)[sequences.latents],
            sequences.und_positions,
            sequences.gen_positions,
            sequences.mask,
        )
        assert gen is not None
        return self._network.velocity(gen[sequences.is_noise]).view_as(x)

    def following(self) -> list[int]:
        """The likeliest token after each row."""
        sequences = self._sequences
        und, _ = self._network.forward_dense(self._und, None, sequences.und_positions, None, sequences.mask)
        scores = self._network.scores(und[torch.arange(len(und)), self._last])
        return [int(index) for index in scores.argmax(-1)]


def _guided(
    velocity: torch.Tensor,
    without_text: torch.Tensor | None,
    without_image: torch.Tensor | None,
    params: Mapping[str, Any],
) -> torch.Tensor:
    """[B, T, D] each; image by image, as lengths are those of one image."""
    images = [
        guided(
            velocity[index, :, None],
            None if without_text is None else without_text[index, :, None],
            None if without_image is None else without_image[index, :, None],
            params,
        )
        for index in range(len(velocity))
    ]
    return torch.stack(images)[:, :, 0]


def noise_of(config: BagelConfig, count: int, seed: int) -> torch.Tensor:
    """[count, T, D]."""
    shape = (count, config.max_latent_side**2, config.latent_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
