"""The requests of POST /v1/images/generations and /v1/images/edits."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mstar_rt.protos import tensor_pb2
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.gateway.options import BUDGET, SAMPLING, Given, take_sampling
from mstar_rt.server.image_encoding import JPEG, PNG

FORMATS = {"png": PNG, "jpeg": JPEG}
OTHER_FORMATS = ("webp", "gif", "svg")
RESPONSE = "response_format"
MAX_PARTIAL_IMAGES = 3
"""OpenAI's."""
SCALES = {
    "cfg_text_scale": "text_guidance", "cfg_img_scale": "image_guidance", "cfg_renorm_min": "renormalization_min",
    "timestep_shift": "timestep_shift",
}  # fmt: skip
"""Fields that are an option under another name, as all of image models that OpenAI's API has no word for."""
STEPS, INTERVAL, RENORM = "num_inference_steps", "cfg_interval", "cfg_renorm_type"
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "background": ("auto", "opaque"), "quality": ("auto",), "style": (), "moderation": ("auto",), "user": (),
    "safety_identifier": (), "output_compression": (), "complexity": (), "frame_count": (), "frame_duration_ms": (),
    "svg": (), "input_fidelity": (), "mask": (), "markup": (),
}  # fmt: skip
"""Fields of OpenAI's API that nothing is made of here, with the values that are as if they were not given."""
KNOWN = (
    "model", "prompt", "n", "size", RESPONSE, "output_format", "stream", "partial_images", "think", STEPS, INTERVAL,
    RENORM, BUDGET, *SCALES, *SAMPLING, *WITHOUT_EFFECT,
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """`image` is the file of an edit. `streams`: events come as it is made, at most `num_partial` before an image."""

    model: str
    prompt: str
    image: Any
    options: Given
    num_images: int
    think: bool
    format: str
    streams: bool
    num_partial: int
    budget_ms: float | None

    @property
    def encoding(self) -> tensor_pb2.Image.Encoding:
        return FORMATS[self.format]


def read_images(fields: Fields, is_edit: bool) -> Asked:
    """Raises:  FieldError."""
    model, prompt = fields.required_text("model"), fields.required_text("prompt")
    image = fields.any("image") if is_edit else None
    num_images, streams = fields.integer("n"), bool(fields.flag("stream"))
    num_partial = fields.integer("partial_images") or 0
    if not 0 <= num_partial <= MAX_PARTIAL_IMAGES:
        raise fields.error("partial_images", f"is {num_partial}, expected 0 to {MAX_PARTIAL_IMAGES}")
    if num_partial and not streams:
        raise fields.error("partial_images", "is given without stream, leave it out")
    _check_response(fields)
    asked = Asked(
        model, prompt, image, _options(fields), 1 if num_images is None else num_images, bool(fields.flag("think")),
        _format(fields), streams, num_partial, fields.number(BUDGET),
    )  # fmt: skip
    fields.without_effect(WITHOUT_EFFECT)
    fields.refuse_rest(KNOWN if not is_edit else (*KNOWN, "image"))
    return asked


def _options(fields: Fields) -> Given:
    options = take_sampling(fields) | _size(fields)
    for field, name in SCALES.items():
        value = fields.number(field)
        if value is not None:
            options[name] = field, value
    steps, renorm, interval = fields.integer(STEPS), fields.text(RENORM), fields.numbers(INTERVAL)
    if steps is not None:
        options["num_denoise_steps"] = STEPS, steps
    if renorm is not None:
        options["renormalization"] = RENORM, renorm
    if interval is not None:
        if len(interval) != 2:
            raise fields.error(INTERVAL, f"has {len(interval)} numbers, expected two: from and to, of flow time")
        options["guidance_start"], options["guidance_end"] = (INTERVAL, interval[0]), (INTERVAL, interval[1])
    return options


def _size(fields: Fields) -> Given:
    """None where it is the model's to say."""
    given = fields.text("size")
    if given is None or given == "auto":
        return {}
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", given)
    if match is None:
        raise fields.error("size", f'is {json.dumps(given[:64])}, expected "auto" or "WIDTHxHEIGHT" in pixels')
    return {"width": ("size", int(match[1])), "height": ("size", int(match[2]))}


def _format(fields: Fields) -> str:
    given = fields.text("output_format") or "png"
    if given in OTHER_FORMATS:
        raise fields.error("output_format", f"is {given}, which this server does not make: ask for png or jpeg")
    if given not in FORMATS:
        raise fields.error("output_format", f"is {json.dumps(given[:64])}, expected one of {', '.join(FORMATS)}")
    return given


def _check_response(fields: Fields) -> None:
    given = fields.text(RESPONSE)
    if given == "url":
        raise fields.error(RESPONSE, "is url, but this server keeps no images to be fetched: ask for b64_json")
    if given not in (None, "b64_json"):
        raise fields.error(RESPONSE, f"is {json.dumps(given[:64])}, expected b64_json")
