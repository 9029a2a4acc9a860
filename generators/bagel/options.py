"""How images are drawn: the options of a request, and whether they make sense together. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generators.bagel.config import RENORMALIZATIONS, BagelConfig
from generators.bagel.guidance import check_guidance, check_guided
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ParamSpec

MAX_DENOISE_STEPS = 200
MAX_SCALE = 100.0
MIN_SHIFT, MAX_SHIFT = 0.01, 100.0


def size_params(config: BagelConfig) -> tuple[ParamSpec, ...]:
    """Of a task that draws from nothing; an edit is as large as what it changes."""
    step, most = config.token_pixels, config.token_pixels * config.max_latent_side
    sizes = (("height", config.defaults.height), ("width", config.defaults.width))
    return tuple(
        ParamSpec(name, "int", value, f"of the image, a multiple of {step}", "pixels", minimum=step, maximum=most)
        for name, value in sizes
    )


def drawing_params(config: BagelConfig, edits: bool) -> tuple[ParamSpec, ...]:
    """All options of drawing but the size and the seed. `edits`: the defaults of an edit."""
    usual, steps = config.defaults, MAX_DENOISE_STEPS
    text, image, start, mode = (
        (usual.edit_text_guidance, usual.edit_image_guidance, usual.edit_guidance_start, usual.edit_renormalization)
        if edits
        else (usual.text_guidance, usual.image_guidance, usual.guidance_start, usual.renormalization)
    )
    return (
        ParamSpec(
            "num_denoise_steps", "int", usual.num_denoise_steps, "evaluations of the velocity", minimum=1, maximum=steps
        ),
        ParamSpec(
            "timestep_shift", "float", usual.timestep_shift, "over 1: more steps near noise", minimum=MIN_SHIFT,
            maximum=MAX_SHIFT,
        ),
        ParamSpec(
            "text_guidance", "float", text, "how far from what it is without the text; 1: off", minimum=1,
            maximum=MAX_SCALE,
        ),
        ParamSpec(
            "image_guidance", "float", image, "how far from what it is without image and plan; 1: off", minimum=1,
            maximum=MAX_SCALE,
        ),
        ParamSpec("guidance_start", "float", start, "guidance is on at times above", minimum=0, maximum=1),
        ParamSpec("guidance_end", "float", usual.guidance_end, "and up to this one", minimum=0, maximum=1),
        ParamSpec(
            "renormalization", "str", mode, "what guided velocities are scaled back to: their length as a whole "
            "(global), token by token (channel), or so before the image's guidance (text_channel)",
            choices=RENORMALIZATIONS,
        ),
        ParamSpec(
            "renormalization_min", "float", usual.renormalization_min, "never scaled to less than this", minimum=0,
            maximum=1,
        ),
        ParamSpec("preview_every", "int", 0, "a picture after so many steps; 0: none", minimum=0, maximum=steps),
        ParamSpec("latents_every", "int", 0, "the latents after so many steps; 0: none", minimum=0, maximum=steps),
    )  # fmt: skip


def check_drawing(params: Mapping[str, Any], config: BagelConfig) -> None:
    """Raises: InvalidArgument: options that say nothing, or contradict each other; see check_guidance, check_guided."""
    if "num_denoise_steps" not in params:
        return
    usual = {spec.name: spec.default for spec in drawing_params(config, edits="height" not in params)}
    check_guidance(params)
    check_guided(params, usual)
    num_steps, shift = params["num_denoise_steps"], params["timestep_shift"]
    if num_steps == 1 and shift != usual["timestep_shift"]:
        raise InvalidArgument(
            f"timestep_shift is {shift:g}, but the only denoise step goes all the way whatever it is: set "
            "num_denoise_steps above 1, or leave timestep_shift out"
        )
    for name in ("preview_every", "latents_every"):
        if params[name] > num_steps:
            raise InvalidArgument(f"{name} is {params[name]}, but there are {num_steps} denoise steps: ask for fewer")


def size_in_tokens(params: Mapping[str, Any], config: BagelConfig) -> tuple[int, int]:
    """Rows and columns of the image that a request draws from nothing; zeros where it draws none.

    Raises: InvalidArgument: it is in no whole number of tokens.
    """
    if "height" not in params:
        return 0, 0
    for name in ("height", "width"):
        if params[name] % config.token_pixels:
            raise InvalidArgument(
                f"{name} is {params[name]}, expected a multiple of {config.token_pixels} pixels: the nearest are "
                f"{_nearest_multiples(params[name], config)}"
            )
    return params["height"] // config.token_pixels, params["width"] // config.token_pixels


def _nearest_multiples(size: int, config: BagelConfig) -> str:
    below = size // config.token_pixels
    return f"{below * config.token_pixels} and {(below + 1) * config.token_pixels}"
