"""What the shortest request of each task reads, in tokens. No torch."""

from __future__ import annotations

from collections.abc import Callable

from generators.bagel.config import BagelConfig
from generators.bagel.sizes import fitted_size
from mstar_rt.model.conversation import WARM_UP

NUM_BORDERS = 2
"""The tokens around a text or an image."""
SMALLEST = (1, 1)
"""An image, in pixels. None takes fewer tokens, as it is made larger first."""


def num_read(config: BagelConfig, count: Callable[[str], int]) -> dict[str, int]:
    """By task. `count`: the tokens of a text. A plan is read as well, so that its borders count."""
    fitted = fitted_size(SMALLEST, config.latent_size)
    seen = fitted_size(fitted, config.vision_size)
    text = count(WARM_UP) + NUM_BORDERS
    latents = fitted[0] // config.token_pixels * (fitted[1] // config.token_pixels) + NUM_BORDERS
    patches = seen[0] // config.vision.patch_size * (seen[1] // config.vision.patch_size) + NUM_BORDERS
    return {
        "chat": text,
        "describe_image": patches + text,
        "text_to_image": text,
        "edit_image": latents + patches + text,
        "think_and_draw": count(config.think_prompt) + NUM_BORDERS + text + NUM_BORDERS,
    }
