"""What guidance makes of the velocities of one image, seen from up to three contexts.

Guidance makes velocities longer; they are scaled back to what they were without it, as a whole ("global") or token by
token ("channel"), or token by token before the image's guidance ("text_channel").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

SMALL = 1e-8
"""So that a velocity of zero has a scale."""
TOKEN, WHOLE = (-1,), (0, 1, 2)


def guided(
    velocity: torch.Tensor,
    without_text: torch.Tensor | None,
    without_image: torch.Tensor | None,
    params: Mapping[str, Any],
) -> torch.Tensor:
    """The velocity to go on with.

    Args:    all [rows, columns, D] float32; None: that branch has no say in this step.
    Source:  arXiv 2505.14683, and the published inference code.
    """
    mode, least = params["renormalization"], params["renormalization_min"]
    towards_text = velocity
    if without_text is not None:
        towards_text = without_text + params["text_guidance"] * (velocity - without_text)
        if mode == "text_channel":
            towards_text = _scaled_back(towards_text, velocity, TOKEN, least)
    towards_image = towards_text
    if without_image is not None:
        towards_image = without_image + params["image_guidance"] * (towards_text - without_image)
    if mode == "global":
        return _scaled_back(towards_image, velocity, WHOLE, least)
    if mode == "channel":
        return _scaled_back(towards_image, velocity, TOKEN, least)
    return towards_image


def _scaled_back(v: torch.Tensor, before: torch.Tensor, dims: tuple[int, ...], least: float) -> torch.Tensor:
    """No longer than `before`, but not to less than `least` of what it is."""
    length, length_before = (torch.linalg.vector_norm(x, dim=dims, keepdim=True) for x in (v, before))
    return v * (length_before / (length + SMALL)).clamp(least, 1.0)
