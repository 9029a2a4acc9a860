"""Clips encoded and predicted in parts, tile by tile, give what they give at once."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from reference_video import IMAGE, PATCHES, reference, saved, some_patches
from walk_driver import Request, Served, WalkDriver, drive

from world_models.vjepa2_video import tiles
from world_models.vjepa2_video.model import declare


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> WalkDriver:
    return drive(declare("tiny", str(saved(reference(), tmp_path_factory.mktemp("tiny"))), {}))


def clip(num_frames: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_frames, IMAGE, IMAGE, 3), dtype=torch.uint8, generator=generator)


def requests() -> list[Request]:
    targets = some_patches(1, 3 * PATCHES, 7, 0)[0]
    return [
        Request("encode", {"frames": clip(6, 0)}),
        Request("encode", {"frames": clip(1, 1)}),
        Request("encode", {"frames": clip(6, 2)}),
        Request("predict", {"frames": clip(6, 3), "target_patches": targets}),
        Request("predict", {"frames": clip(6, 4), "target_patches": targets, "context_patches": (targets + 1) % 48},
                {"encode_context_only": True}),
        Request("predict", {"latents": torch.randn(3 * PATCHES, 96), "target_patches": targets}),
    ]  # fmt: skip


def assert_equal(parts: list[Served], whole: list[Served]) -> None:
    for one, other in zip(parts, whole, strict=True):
        assert one.emitted.keys() == other.emitted.keys()
        for name, values in other.emitted.items():
            torch.testing.assert_close(one.emitted[name], values, rtol=0, atol=1e-5)


def num_steps_of(driver: WalkDriver, name: str) -> int:
    return sum(node == name for node, _ in driver.batches)


@pytest.mark.parametrize(("tile", "most"), [(1, 40), (7, 5), (16, 1), (16, 40), (128, 1), (128, 5)])
def test_in_parts_as_at_once(driver: Any, monkeypatch: pytest.MonkeyPatch, tile: int, most: int) -> None:
    torch.manual_seed(0)
    asked, draw = requests(), random.Random(most)
    driver.share_of = None
    driver.batches.clear()
    whole = driver.run(*asked)
    num_batches, num_reads = len(driver.batches), num_steps_of(driver, "read")
    monkeypatch.setattr(tiles, "TILE", tile)
    driver.batches.clear()
    driver.share_of = lambda num_left: draw.randint(1, min(num_left, most))
    assert_equal(driver.run(*asked), whole)
    assert len(driver.batches) > num_batches
    assert num_steps_of(driver, "read") > num_reads or tile > PATCHES


def test_rounds_pass_each_token_once_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 5)
    draw = random.Random(1)
    for num_tokens in (1, 4, 5, 6, 10, 23):
        num_items, done, seen = tiles.num_items(3, num_tokens), 0, []
        while done < num_items:
            share = draw.randint(1, num_items - done)
            for number, rows in tiles.rounds(range(done, done + share), num_tokens):
                seen += [(number, token) for token in range(rows.start, rows.stop)]
            done += share
        assert seen == [(number, token) for number in range(3) for token in range(num_tokens)]
