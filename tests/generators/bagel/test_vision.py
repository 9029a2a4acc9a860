"""The vision tower against transformers' SigLIP, which knows no other shape of image than the square."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bagel_tiny import GOLDEN, described, write_folder
from safetensors.torch import load_file
from torch.nn import functional

from generators.bagel.checkpoint import load_vision
from generators.bagel.config import read_config
from generators.bagel.embedders import sincos_2d
from generators.bagel.vision import Vision

PREFIX = "vit_model.vision_model."


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Vision:
    folder = write_folder(tmp_path_factory.mktemp("bagel") / "tiny")
    return load_vision(read_config(folder), folder)


@pytest.fixture(scope="module")
def oracle() -> torch.nn.Module:
    """The golden tower as transformers has it: patches by a convolution, whose weights are channels, rows, columns."""
    transformers = pytest.importorskip("transformers")
    given = described()["vit"]
    tower = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=given["hidden"], intermediate_size=given["mlp"], num_hidden_layers=given["layers"],
            num_attention_heads=given["heads"], image_size=given["image_size"], patch_size=given["patch"],
            vision_use_head=False,
        )
    )  # fmt: skip
    weights = load_file(GOLDEN / "bagel_tiny.ema.safetensors")
    held = {key.removeprefix(PREFIX): value for key, value in weights.items() if key.startswith(PREFIX)}
    patches = held["embeddings.patch_embedding.weight"]
    held["embeddings.patch_embedding.weight"] = patches.unflatten(1, (14, 14, 3)).permute(0, 3, 1, 2)
    tower.load_state_dict(held)
    return tower.eval()


def pixels_of(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, 14 * rows, 14 * columns, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def connected(vision: Vision, tokens: torch.Tensor) -> torch.Tensor:
    """The connector from its definition."""
    weights = {key: value for key, value in vision.state_dict().items() if key.startswith("connector.")}
    hidden = functional.linear(tokens, weights["connector.fc1.weight"], weights["connector.fc1.bias"])
    hidden = functional.gelu(hidden, approximate="tanh")
    return functional.linear(hidden, weights["connector.fc2.weight"], weights["connector.fc2.bias"])


@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (4, 3), (2, 7), (1, 12)])
def test_tokens_are_those_of_transformers(rows: int, columns: int, vision: Vision, oracle: torch.nn.Module) -> None:
    """Whole images give the square's table as it is; of others each patch takes the position of its cell in the
    square. Sums of 588 products in another order: 1e-6 of numbers around 1 before the connector."""
    pixels = pixels_of(rows, columns)
    cells = (torch.arange(rows)[:, None] * 12 + torch.arange(columns)).flatten()
    with torch.no_grad():
        if rows == columns == 12:
            expected = oracle(pixels).last_hidden_state
        else:
            patches = oracle.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
            hidden = patches + oracle.embeddings.position_embedding(cells)
            expected = oracle.post_layernorm(oracle.encoder(inputs_embeds=hidden).last_hidden_state)
        torch.testing.assert_close(vision.tower(pixels), expected, rtol=0, atol=1e-5)
        expected = connected(vision, expected) + sincos_2d(64, 12)[cells]
        torch.testing.assert_close(vision(pixels), expected, rtol=0, atol=1e-5)


def test_an_image_keeps_its_shape(vision: Vision) -> None:
    """The same patches in another shape are other tokens: nothing stretches an image to the square."""
    wide = pixels_of(2, 6)
    tall = torch.cat(wide.chunk(3, dim=3), dim=2)
    with torch.no_grad():
        assert vision(wide).shape == vision(tall).shape == (2, 12, 64)
        assert (vision(wide) - vision(tall)[:, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]]).abs().max() > 0.1


def test_images_come_out_alike_alone_and_beside_others(vision: Vision, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = pixels_of(4, 3)
    with torch.no_grad():
        together = vision(pixels)
        alone = torch.cat([vision(each[None]) for each in pixels])
        monkeypatch.setattr("generators.bagel.vision.items_at_once", lambda *_: 1)
        apart = vision(pixels)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert torch.equal(apart, alone)


def test_an_image_beyond_the_tables_or_between_patches_is_a_bug(vision: Vision) -> None:
    with pytest.raises(AssertionError, match="1 x 13 patches, but positions go to 12 x 12"):
        vision(pixels_of(1, 13))
    with pytest.raises(AssertionError, match="not in patches of 14"):
        vision(torch.zeros(1, 3, 28, 30))


def test_reduced_precision(tmp_path: Path, vision: Vision) -> None:
    folder = write_folder(tmp_path / "tiny")
    config = read_config(folder)
    reduced = load_vision(replace(config, name="reduced"), folder, dtype=torch.bfloat16)
    with torch.no_grad():
        found, expected = reduced(pixels_of(4, 3)), vision(pixels_of(4, 3))
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.1)
