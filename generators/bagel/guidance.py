"""Which contexts an image is seen from in which step. No torch.

Besides the whole context (main), guidance looks from one without the last text (cfg_text) and from one without the
images and without what was planned (cfg_img), and goes further away from what is seen there. A context that no step
looks from is not filled, and a branch is not run in a step that has no use for it.

It differs from the published loop in one point: that one applies `image_guidance` only where `text_guidance` is over 1,
here each of them counts by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from generators.bagel.schedule import times_of
from mstar_rt.errors import InvalidArgument

OFF = 1.0
"""The scale that changes nothing."""
OF_GUIDING: tuple[str, ...] = ("guidance_start", "guidance_end", "renormalization", "renormalization_min")
"""Options that change nothing where both scales are off."""


class Branches(NamedTuple):
    """Which of the branches besides the main one."""

    without_text: bool
    without_image: bool


NONE = Branches(False, False)


def branches_at(params: Mapping[str, Any], step: int) -> Branches:
    """In one step. Guidance is on where guidance_start < time <= guidance_end."""
    time = times_of(params)[step]
    if not params["guidance_start"] < time <= params["guidance_end"]:
        return NONE
    return Branches(params["text_guidance"] > OFF, params["image_guidance"] > OFF)


def branches_read(params: Mapping[str, Any]) -> Branches:
    """In any step; none where the request draws nothing."""
    if "num_denoise_steps" not in params:
        return NONE
    of_steps = [branches_at(params, step) for step in range(params["num_denoise_steps"])]
    return Branches(*(any(of_branch) for of_branch in zip(*of_steps, strict=True)))


def num_passes(params: Mapping[str, Any], has_image_context: bool) -> int:
    """How often the network is run over the latents. `has_image_context`: cfg_img is another context than main."""
    of_steps = [branches_at(params, step) for step in range(params["num_denoise_steps"])]
    return sum(1 + each.without_text + (each.without_image and has_image_context) for each in of_steps)


def check_guidance(params: Mapping[str, Any]) -> None:
    """Raises:  InvalidArgument: guidance is asked for, and no step lies where it is on; or an option has no use."""
    scales = {name: params[name] for name in ("text_guidance", "image_guidance")}
    if max(scales.values()) > OFF and branches_read(params) == NONE:
        raise InvalidArgument(
            f"guidance is on where {params['guidance_start']:g} < time <= {params['guidance_end']:g}, and none of the "
            f"{params['num_denoise_steps']} denoise steps lies there: move guidance_start and guidance_end apart, or "
            "set text_guidance and image_guidance to 1"
        )
    if params["renormalization"] == "none" and params["renormalization_min"] > 0:
        raise InvalidArgument(
            f"renormalization_min is {params['renormalization_min']:g}, but renormalization is 'none': leave one of "
            "them out"
        )


def check_guided(params: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Options that say how to guide, where nothing is guided. One that has its default, of `usual`, may be one that was
    not given: it is let in.

    Raises:  InvalidArgument: one of them has another value, and no use.
    """
    if params["text_guidance"] > OFF:
        return
    if params["image_guidance"] <= OFF:
        without_use, why = OF_GUIDING, "nothing is guided"
    elif params["renormalization"] == "text_channel":
        without_use, why = ("renormalization_min",), "renormalization is 'text_channel' and the text guides nothing"
    else:
        return
    for name in without_use:
        if params[name] != usual[name]:
            raise InvalidArgument(
                f"{name} is {params[name]!r}, but {why}: set text_guidance above 1, or leave {name} out"
            )
