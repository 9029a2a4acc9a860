"""The requests of POST /v1/images/generations and /v1/images/edits."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mstar_rt.model import ServedModel
from mstar_rt.protos import tensor_pb2
from mstar_rt.server.gateway.fields import MAX_SHOWN, Fields
from mstar_rt.server.gateway.options import BUDGET, SAMPLING, STOP, Given, Names, named, take_sampling, take_stop
from mstar_rt.server.generation.image_requests import drawing_task, editing_task, image_spec
from mstar_rt.server.generation.requests import option_names
from mstar_rt.server.image_encoding import JPEG, PNG

FORMATS = {"png": PNG, "jpeg": JPEG}
OTHER_FORMATS = ("webp", "gif", "svg")
RESPONSE = "response_format"
MAX_PARTIAL_IMAGES = 3
"""OpenAI's."""
SCALES = {
    "text_guidance": "cfg_text_scale", "image_guidance": "cfg_img_scale", "renormalization_min": "cfg_renorm_min",
    "timestep_shift": "timestep_shift",
}  # fmt: skip
STEPS, INTERVAL, RENORM = "num_inference_steps", "cfg_interval", "cfg_renorm_type"
SIZE, PARTIAL = "size", "partial_images"
OF_OPTIONS = {
    **SCALES, "num_denoise_steps": STEPS, "renormalization": RENORM, "guidance_start": INTERVAL,
    "guidance_end": INTERVAL, "width": SIZE, "height": SIZE, "preview_every": PARTIAL,
    **{name: name for name in (*SAMPLING, STOP)},
}  # fmt: skip
"""The field of each option: what OpenAI's API has no word for has the name that image models have for it."""
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "background": ("auto", "opaque"), "quality": ("auto",), "style": (), "moderation": ("auto",), "user": (),
    "safety_identifier": (), "output_compression": (), "complexity": (), "frame_count": (), "frame_duration_ms": (),
    "svg": (), "input_fidelity": (), "mask": (), "markup": (),
}  # fmt: skip
"""Fields of OpenAI's API that nothing is made of here, with the values that are as if they were not given."""
OF_ALL = ("model", "prompt", "n", RESPONSE, "output_format", "stream", BUDGET)
NAMES: Names = {
    **named({**OF_OPTIONS, "num_images": "n", "conversation": "prompt", "think": "think", BUDGET: BUDGET}),
    "guidance_start": (INTERVAL, f"{INTERVAL}[0]"), "guidance_end": (INTERVAL, f"{INTERVAL}[1]"),
    "width": (SIZE, f"{SIZE} (width)"), "height": (SIZE, f"{SIZE} (height)"),
}  # fmt: skip
EDIT_NAMES: Names = {**NAMES, **named({"image": "image"})}


@dataclass(frozen=True)
class Asked:
    """`image` is the file of an edit. `streams`: events come as it is made, at most `num_partial` before an image."""

    task: str
    prompt: str
    image: Any
    options: Given
    num_images: int
    format: str
    streams: bool
    num_partial: int
    budget_ms: float | None

    @property
    def encoding(self) -> tensor_pb2.Image.Encoding:
        return FORMATS[self.format]


def read_images(fields: Fields, model: ServedModel, is_edit: bool) -> Asked:
    """All but the field `model`.

    Raises:  FieldError.  InvalidArgument: the model does not make such images.
    """
    prompt, think = fields.required_text("prompt"), fields.flag("think")
    if not prompt.strip():
        raise fields.error("prompt", "has no word in it, expected at least one")
    task = editing_task(model, think) if is_edit else drawing_task(model, think)
    image = fields.any("image") if is_edit else None
    num_images, streams = fields.integer("n"), bool(fields.flag("stream"))
    num_partial = fields.integer(PARTIAL) or 0
    if not 0 <= num_partial <= MAX_PARTIAL_IMAGES:
        raise fields.error(PARTIAL, f"is {num_partial}, expected 0 to {MAX_PARTIAL_IMAGES}")
    if num_partial and not streams:
        raise fields.error(PARTIAL, "is given without stream, leave it out")
    _check_response(fields)
    asked = Asked(
        task, prompt, image, _options(fields), 1 if num_images is None else num_images, _format(fields), streams,
        num_partial, fields.number(BUDGET),
    )  # fmt: skip
    fields.without_effect(WITHOUT_EFFECT)
    fields.refuse_rest(_known(model, is_edit))
    return asked


def _known(model: ServedModel, is_edit: bool) -> set[str]:
    """Fields that such a request can have, with or without `think`."""
    images = image_spec(model)
    tasks = [images.edit] if is_edit else [task for task in (images.draw, images.think) if task]
    own = frozenset[str]().union(*(option_names(model, task) for task in tasks))
    known = {*OF_ALL, *(field for option, field in OF_OPTIONS.items() if option in own)}
    if is_edit:
        return known | {"image"}
    return known | {"think"} if images.think else known


def _options(fields: Fields) -> Given:
    options = take_sampling(fields) | take_stop(fields) | _size(fields)
    for name, field in SCALES.items():
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
    given = fields.text(SIZE)
    if given is None or given == "auto":
        return {}
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", given)
    if match is None:
        expected = '"auto" or "WIDTHxHEIGHT" in pixels, each at most 999999'
        raise fields.error(SIZE, f"is {json.dumps(given[:MAX_SHOWN])}, expected {expected}")
    return {"width": (SIZE, int(match[1])), "height": (SIZE, int(match[2]))}


def _format(fields: Fields) -> str:
    given = fields.text("output_format") or "png"
    if given in OTHER_FORMATS:
        raise fields.error("output_format", f"is {given}, which this server does not make: ask for png or jpeg")
    if given not in FORMATS:
        raise fields.error("output_format", f"is {json.dumps(given[:MAX_SHOWN])}, expected one of {', '.join(FORMATS)}")
    return given


def _check_response(fields: Fields) -> None:
    given = fields.text(RESPONSE)
    if given == "url":
        raise fields.error(RESPONSE, "is url, but this server keeps no images to be fetched: ask for b64_json")
    if given not in (None, "b64_json"):
        raise fields.error(RESPONSE, f"is {json.dumps(given[:MAX_SHOWN])}, expected b64_json")
