"""POST /v1/images/generations and /v1/images/edits."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import numpy as np

from mstar_rt.model import ServedModel
from mstar_rt.server.gateway.call import Call
from mstar_rt.server.gateway.data_url import image_of_file
from mstar_rt.server.gateway.errors import FieldError
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.gateway.image_fields import EDIT_NAMES, NAMES, PARTIAL, Asked, read_images
from mstar_rt.server.gateway.options import as_fields, checked
from mstar_rt.server.generation.events import End, Text
from mstar_rt.server.generation.image_events import Picture, Progress, end_of_all, events_of_all
from mstar_rt.server.generation.image_requests import (
    MAX_NUM_IMAGES,
    ImageRequests,
    all_started,
    image_requests,
    refuse_misplaced,
)
from mstar_rt.server.image_encoding import encode_image
from mstar_rt.server.request_stream import RequestStream

OPAQUE = "opaque"
DRAWING, EDITING = "image_generation", "image_edit"
"""What events of a stream begin with."""


async def serve_drawing(call: Call, fields: Fields) -> None:
    with as_fields(NAMES):
        with call.timer.decoding():
            model = call.model(fields.required_text("model"))
            asked = read_images(fields, model, is_edit=False)
            requests = requests_of(model, asked, None)
        await _serve(call, model, asked, requests, DRAWING)


async def serve_editing(call: Call, fields: Fields) -> None:
    with as_fields(EDIT_NAMES):
        with call.timer.decoding():
            model = call.model(fields.required_text("model"))
            asked = read_images(fields, model, is_edit=True)
            requests = requests_of(model, asked, await image_of_file(asked.image, "image"))
        await _serve(call, model, asked, requests, EDITING)


def requests_of(model: ServedModel, asked: Asked, image: np.ndarray | None) -> ImageRequests:
    """Raises:  FieldError, InvalidArgument: what was asked does not fit the task."""
    if not 1 <= asked.num_images <= MAX_NUM_IMAGES:
        raise FieldError("n", f"n is {asked.num_images}, expected 1 to {MAX_NUM_IMAGES}")
    given = dict(asked.options)
    if asked.num_partial:
        given["preview_every"] = PARTIAL, _preview_every(model, asked)
    refuse_misplaced(model, asked.task, given)
    options = checked(model, asked.task, given)
    return image_requests(model, asked.task, [("user", asked.prompt)], image, options, asked.num_images)


def _preview_every(model: ServedModel, asked: Asked) -> int:
    """After how many steps there is a partial image: at the ends of equal parts, the last of which is the image's."""
    usual = next((spec.default for spec in model.task(asked.task).params if spec.name == "num_denoise_steps"), None)
    _, steps = asked.options.get("num_denoise_steps", ("", usual))
    return max(1, steps // (asked.num_partial + 1)) if isinstance(steps, int) else 1


async def _serve(call: Call, model: ServedModel, asked: Asked, requests: ImageRequests, kind: str) -> None:
    async with AsyncExitStack() as stack:
        with call.timer.decoding():
            streams = await stack.enter_async_context(
                all_started(requests.inputs, lambda given, index: call.start(model, given, asked.budget_ms, index))
            )
        if asked.streams:
            await _as_events(call, asked, requests, streams, kind)
        else:
            await _whole(call, asked, requests, streams)


# ---- the answer


async def _whole(call: Call, asked: Asked, requests: ImageRequests, streams: Sequence[RequestStream]) -> None:
    images: list[dict[str, Any]] = [{"seed": seed} for seed in requests.seeds]
    size, ends = "", dict[int, End]()
    async with aclosing(events_of_all(streams, requests.every)) as events:
        async for index, event in events:
            if isinstance(event, Text):
                images[index]["revised_prompt"] = images[index].get("revised_prompt", "") + event.text
            elif isinstance(event, End):
                ends[index] = event
            elif isinstance(event, Picture):
                size = _size_text(event.pixels)
                with call.timer.encoding():
                    images[index]["b64_json"] = await _base64(event.pixels, asked)
    answer = {
        "created": call.created_s, "data": images, "background": OPAQUE, "output_format": asked.format, "size": size,
        "usage": _usage(ends),
    }  # fmt: skip
    _note_times(call, streams)
    await call.answer(answer)


async def _as_events(
    call: Call, asked: Asked, requests: ImageRequests, streams: Sequence[RequestStream], kind: str
) -> None:
    """A request that fails before there is anything of an image is answered by its error alone."""
    num_sent, completed, plans = Counter[int](), dict[int, dict[str, Any]](), dict[int, str]()
    async with aclosing(events_of_all(streams, requests.every)) as events:
        async for index, event in events:
            if isinstance(event, End):
                plan = {"revised_prompt": plans[index]} if index in plans else {}
                await call.event({**completed.pop(index), **plan, "usage": _usage({index: event})})
            elif isinstance(event, Text):
                plans[index] = plans.get(index, "") + event.text
            elif isinstance(event, Picture):
                made = await _made(call, asked, event.pixels, index)
                completed[index] = {"type": f"{kind}.completed", **made, "seed": requests.seeds[index]}
            elif isinstance(event, Progress) and event.preview is not None:
                is_last = event.step == requests.num_steps  # the image itself is about to come
                if is_last or num_sent[index] == asked.num_partial:
                    continue
                made = await _made(call, asked, event.preview, index)
                await call.event({"type": f"{kind}.partial_image", **made, "partial_image_index": num_sent[index]})
                num_sent[index] += 1
    _note_times(call, streams)
    await call.end()


async def _made(call: Call, asked: Asked, pixels: np.ndarray, index: int) -> dict[str, Any]:
    """OpenAI's fields of an event, and which of several images it is of."""
    with call.timer.encoding():
        data = await _base64(pixels, asked)
    return {
        "b64_json": data, "created_at": call.created_s, "background": OPAQUE, "output_format": asked.format,
        "quality": "auto", "size": _size_text(pixels), "image_index": index,
    }  # fmt: skip


async def _base64(pixels: np.ndarray, asked: Asked) -> str:
    return base64.b64encode(await encode_image(pixels, asked.encoding)).decode()


def _size_text(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


def _note_times(call: Call, streams: Sequence[RequestStream]) -> None:
    for stream in streams:
        call.timer.timing(stream)


def _usage(ends: dict[int, End]) -> dict[str, int]:
    """Tokens of what the images were made from, and of plans; an image itself counts none."""
    end = end_of_all([end for _, end in sorted(ends.items())])
    total = end.num_input_tokens + end.num_output_tokens
    return {"input_tokens": end.num_input_tokens, "output_tokens": end.num_output_tokens, "total_tokens": total}
