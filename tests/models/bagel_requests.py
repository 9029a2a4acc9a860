"""Requests to the golden BAGEL, and how to give it the noise and the images that the reference was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from generators.bagel.model import declare
from mstar_rt.model.conversation import write_conversation
from tests.models import bagel_tiny
from tests.models.walk_driver import Served, WalkDriver, drive

DRAW, EDIT, ASK = "+,-./", "567", "?@AB"
"""Texts whose tokens are the golden prompts."""
Tensors = Mapping[str, torch.Tensor]


def said(*contents: str, roles: tuple[str, ...] = ("user",)) -> dict[str, torch.Tensor]:
    turns = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return {"conversation": torch.from_numpy(write_conversation(turns))}


def picture(seed: int = 0, height: int = 32, width: int = 32) -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(seed)
    coarse = torch.from_numpy(generator.uniform(0, 255, (1, 3, 4, 4)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return {"image": smooth[0].permute(1, 2, 0).to(torch.uint8)}


def tiny_driver(folder: Path, ours: Mapping[str, Any] | None = None, **options: Any) -> WalkDriver:
    return drive(declare("tiny", str(bagel_tiny.write_folder(folder, ours)), options))


def code_of(driver: WalkDriver, node: str) -> Any:
    return driver.loaded.engines[node]._code  # type: ignore[attr-defined]


def give_noise(patch: pytest.MonkeyPatch, driver: WalkDriver, noise: torch.Tensor, grid: tuple[int, int]) -> None:
    """noise [T, D], what every image is made of from now on."""
    latent = noise.unflatten(0, grid)
    patch.setattr(code_of(driver, "noise"), "compute", lambda call: {"latent": latent})


def give_pixels(
    patch: pytest.MonkeyPatch, driver: WalkDriver, of_latents: torch.Tensor, of_vision: torch.Tensor
) -> None:
    """What every image is taken to look like to the autoencoder and to the vision tower, [3, H, W], -1 to 1."""
    processor = code_of(driver, "encode_latents")._processor
    patch.setattr(processor, "latent_pixels", lambda image: of_latents[None])
    patch.setattr(processor, "vision_pixels", lambda image: of_vision[None])


def last(served: Served, name: str) -> torch.Tensor:
    return served.emitted[name][-1]


def drawn(served: Served) -> torch.Tensor:
    """The latents of a finished image, [T, D]."""
    return served.persisted["denoised"].flatten(0, 1)


def tokens(served: Served) -> list[int]:
    return [int(token) for token in served.emitted["token"]]


def text(served: Served) -> str:
    return b"".join(piece.numpy().tobytes() for piece in served.emitted["text"]).decode()
