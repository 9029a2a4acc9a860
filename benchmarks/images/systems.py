"""The ways to the same images: the loop over the published files, and the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.images.cases import GUIDANCE_END, GUIDANCE_START, SHIFT, TEXT_GUIDANCE
from benchmarks.images.native import Drawing, NativeBagel
from generators.bagel.flow_nodes import Noise
from mstar_rt.client import AsyncClient
from mstar_rt.model import NodeCall

ALL_BRANCHES, SKIPPING, SERVED = "loop, all branches", "loop, branches skipped", "served over gRPC"
PROMPTS = (
    "a red triangle on white",
    "a large green cross on grey",
    "a small blue circle on yellow",
    "a black square on cyan",
)
FIRST_SEED = 100


@dataclass(frozen=True)
class Wave:
    """Images that were asked for at the same moment: uint8 [H, W, 3] each, when each was there and when all were."""

    images: list[np.ndarray]
    arrivals_s: list[float]

    @property
    def took_s(self) -> float:
        return max(self.arrivals_s)


class ImageSystems:
    """`names` are those under which the model is served, by what the system is to be called."""

    def __init__(self, folder: Path, client: AsyncClient, names: dict[str, str]) -> None:
        self._client = client
        self._names = names
        self._native = NativeBagel(folder)
        self._native.draw(PROMPTS[0], self._noise(FIRST_SEED), self._drawing(2, skips=False))

    async def run(self, system: str, num_images: int, num_steps: int) -> Wave:
        asked = [(prompt, FIRST_SEED + index) for index, prompt in enumerate(PROMPTS[:num_images])]
        if system in self._names:
            return await self._served(self._names[system], asked, num_steps)
        drawing = self._drawing(num_steps, skips=system == SKIPPING)
        start_s, images, arrivals = time.perf_counter(), [], []
        self._native.num_passes = 0
        for prompt, seed in asked:
            images.append(self._native.draw(prompt, self._noise(seed), drawing))
            arrivals.append(time.perf_counter() - start_s)
        assert drawing.skips or self._native.num_passes == 3 * num_steps * num_images
        return Wave(images, arrivals)

    async def _served(self, model: str, asked: Sequence[tuple[str, int]], num_steps: int) -> Wave:
        start_s = time.perf_counter()

        async def draw(prompt: str, seed: int) -> tuple[np.ndarray, float]:
            stream = self._client.draw(
                model, prompt, seed=seed, num_denoise_steps=num_steps, timestep_shift=SHIFT,
                text_guidance=TEXT_GUIDANCE, image_guidance=1.0, guidance_start=GUIDANCE_START,
                guidance_end=GUIDANCE_END, renormalization="global",
            )  # fmt: skip
            (image,) = await stream.images()
            return image.image, time.perf_counter() - start_s

        found = await asyncio.gather(*(draw(*each) for each in asked))
        return Wave([image for image, _ in found], [arrival for _, arrival in found])

    def _noise(self, seed: int) -> torch.Tensor:
        """What the server begins with for that seed, [rows, columns, latent_dim]."""
        config = self._native.config
        size = config.defaults.height // config.token_pixels, config.defaults.width // config.token_pixels
        call = NodeCall(
            "", "", "image_gen", (), {"size": torch.tensor(size)}, {}, time.monotonic_ns, node="noise", seed=seed
        )
        return Noise(config.latent_dim, "cpu").compute(call)["latent"]

    def _drawing(self, num_steps: int, skips: bool) -> Drawing:
        return Drawing(num_steps, SHIFT, TEXT_GUIDANCE, GUIDANCE_START, GUIDANCE_END, skips)
