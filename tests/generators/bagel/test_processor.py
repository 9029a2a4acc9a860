"""Images are resized as the model was trained with, in their own shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generators.bagel.config import BagelConfig, LanguageConfig, SizeRule, VisionConfig
from generators.bagel.processor import ImageProcessor, resized, to_image, to_pixels
from generators.bagel.sizes import fitted_size
from mstar_rt.errors import InvalidArgument
from tests.models.bagel_requests import picture

LATENTS, VISION = SizeRule(1024, 512, 16), SizeRule(980, 224, 14)
SIDES = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("size", "of_latents", "of_vision"),
    [
        ((1024, 1024), (1024, 1024), (980, 980)),
        ((512, 512), (512, 512), (518, 518)),
        ((1, 1), (512, 512), (518, 518)),
        ((480, 640), (512, 688), (518, 686)),
        ((3000, 4000), (768, 1024), (728, 980)),
        ((400, 100), (1024, 256), (980, 252)),
        ((4096, 64), (1024, 16), (980, 14)),
    ],
)
def test_published_sizes(size: tuple[int, int], of_latents: tuple[int, int], of_vision: tuple[int, int]) -> None:
    assert fitted_size(size, LATENTS) == of_latents
    assert fitted_size(of_latents, VISION) == of_vision


@given(SIDES, SIDES, st.sampled_from([LATENTS, VISION, SizeRule(64, 16, 4, 900)]))
def test_sizes_keep_to_the_rule_and_to_the_shape(height: int, width: int, rule: SizeRule) -> None:
    if max(height, width) * rule.multiple > min(height, width) * rule.max_side:
        with pytest.raises(InvalidArgument, match=f"{height} x {width} pixels, its longer side is"):
            fitted_size((height, width), rule)
        return
    fitted = fitted_size((height, width), rule)
    assert all(side % rule.multiple == 0 and rule.multiple <= side <= rule.max_side for side in fitted)
    assert fitted[0] * fitted[1] <= rule.max_pixels
    # Each of up to three roundings moves a side by half a multiple at most.
    ratio = (fitted[0] * width) / (fitted[1] * height)
    slack = 1.5 * rule.multiple * (1 / fitted[0] + 1 / fitted[1]) + 0.05
    assert 1 / (1 + 2 * slack) < ratio < 1 + 2 * slack
    assert fitted_size(fitted, rule) == fitted


@pytest.mark.parametrize("size", [(20, 50), (300, 200), (64, 64), (7, 9)])
def test_resizing_is_that_of_pillow(size: tuple[int, int]) -> None:
    """Which the model was trained with, and which computes in whole numbers."""
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    for given_image in (noise, picture(2, 64, 96)["image"].numpy()):
        want = np.asarray(image.fromarray(given_image).resize((size[1], size[0]), image.Resampling.BICUBIC))
        got = resized(torch.from_numpy(given_image), size).numpy()
        difference = np.abs(got.astype(int) - want.astype(int))
        assert difference.max() <= 2
        assert difference.mean() < 0.05


def test_an_image_that_fits_is_left_as_it_is() -> None:
    image = picture(3, 48, 32)["image"]
    assert resized(image, (48, 32)) is image
    torch.testing.assert_close(to_image(to_pixels(image)), image)
    assert to_pixels(image).shape == (1, 3, 48, 32)
    assert to_pixels(torch.tensor([[[0, 255, 128]]], dtype=torch.uint8)).flatten().tolist() == pytest.approx(
        [-1, 1, 1 / 255], abs=1e-6
    )
    assert to_image(torch.full((1, 3, 1, 1), 1.5)).flatten().tolist() == [255] * 3


def test_the_vision_tower_sees_what_the_autoencoder_does() -> None:
    language = LanguageConfig(8, 8, 8, 1, 1, 1, 8)
    config = BagelConfig(
        "tiny", language, VisionConfig(8, 8, 1, 1, 14, 12), latent_size=SizeRule(32, 16, 4), vision_size=SizeRule(168, 28, 14)
    )  # fmt: skip
    processor, image = ImageProcessor(config, "cpu"), picture(4, 100, 60)["image"]
    seen = resized(image, fitted_size((100, 60), config.latent_size))
    torch.testing.assert_close(processor.latent_pixels(image), to_pixels(seen))
    of_vision = fitted_size((seen.shape[0], seen.shape[1]), config.vision_size)
    torch.testing.assert_close(processor.vision_pixels(image), to_pixels(resized(seen, of_vision)))
