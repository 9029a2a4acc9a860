"""How large an image is made before it is encoded. No torch."""

from __future__ import annotations

from generators.bagel.config import SizeRule
from mstar_rt.errors import InvalidArgument

MAX_IMAGE_SIDE = 4096
"""Pixels each way of an image that a client gives."""
Size = tuple[int, int]
"""Height and width."""


def fitted_size(size: Size, rule: SizeRule) -> Size:
    """The size that an image is resized to: its own shape, as far as multiples allow.

    Raises:  InvalidArgument: it is too long and thin for the rule.
    Source:  the published inference code.
    """
    long, short = max(size), min(size)
    if long * rule.multiple > short * rule.max_side:
        raise InvalidArgument(
            f"the image has {size[0]} x {size[1]} pixels, its longer side is {long / short:.1f} times the shorter one, "
            f"expected at most {rule.max_side // rule.multiple} times: crop it"
        )
    fitted = _scaled(size, max(min(rule.max_side / long, 1.0), rule.min_side / short), rule.multiple)
    num_pixels = fitted[0] * fitted[1]
    if num_pixels > rule.max_pixels:
        fitted = _scaled(fitted, rule.max_pixels / num_pixels, rule.multiple)
    if max(fitted) > rule.max_side:
        fitted = _scaled(fitted, rule.max_side / max(fitted), rule.multiple)
    if max(fitted) > rule.max_side or fitted[0] * fitted[1] > rule.max_pixels:
        raise InvalidArgument(
            f"the image has {size[0]} x {size[1]} pixels, which in multiples of {rule.multiple} cannot be brought to "
            f"sides of at most {rule.max_side} and {rule.max_pixels} pixels: crop it"
        )
    return fitted


def _scaled(size: Size, scale: float, multiple: int) -> Size:
    height, width = (max(multiple, round(round(side * scale) / multiple) * multiple) for side in size)
    return height, width
