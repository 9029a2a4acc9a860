"""What a GenerateRequest asks of images, and the answers that bring them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import fill_tensor
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.generation.events import End, Text
from mstar_rt.server.generation.image_events import Picture, Progress, end_of_all, events_of_all
from mstar_rt.server.generation.image_requests import ImageRequests, image_requests, refuse_misplaced
from mstar_rt.server.generation.requests import Messages
from mstar_rt.server.image_encoding import JPEG, PNG, RAW, fill_image
from mstar_rt.server.inputs import TaskInput, add_model_options
from mstar_rt.server.request_stream import RequestStream

ENCODINGS = {tensor_pb2.Image.ENCODING_UNSPECIFIED: PNG, PNG: PNG, JPEG: JPEG, RAW: RAW}
RENORMALIZATIONS = {
    wire.ImageOptions.RENORMALIZATION_NONE: "none",
    wire.ImageOptions.RENORMALIZATION_GLOBAL: "global",
    wire.ImageOptions.RENORMALIZATION_CHANNEL: "channel",
    wire.ImageOptions.RENORMALIZATION_TEXT_CHANNEL: "text_channel",
}
OF_THE_SERVER = ("num_images", "think", "encoding")
"""Fields of ImageOptions that the model never sees."""


@dataclass(frozen=True)
class AskedImages:
    requests: ImageRequests
    encoding: tensor_pb2.Image.Encoding

    @property
    def inputs(self) -> list[TaskInput]:
        return self.requests.inputs


def read_images(
    model: ServedModel,
    task: str,
    request: wire.GenerateRequest,
    messages: Messages,
    image: np.ndarray | None,
    options: dict[str, Any],
) -> AskedImages:
    """`options` are those that are not in ImageOptions.

    Raises:  InvalidArgument: see `image_requests`, `refuse_misplaced`; an encoding or a renormalization that is none.
    """
    wanted = request.image
    for field, value in wanted.ListFields():
        if field.name not in OF_THE_SERVER:
            options[field.name] = value
    if wanted.renormalization not in (0, *RENORMALIZATIONS):
        raise InvalidArgument(
            f"renormalization {wanted.renormalization} is not known, expected {', '.join(RENORMALIZATIONS.values())}"
        )
    if wanted.renormalization:
        options["renormalization"] = RENORMALIZATIONS[wanted.renormalization]
    if wanted.encoding not in ENCODINGS:
        raise InvalidArgument(f"image.encoding {wanted.encoding} is not known, expected PNG, JPEG or RAW")
    add_model_options(options, request.model_options)
    refuse_misplaced(model, task, options)
    num_images = wanted.num_images if wanted.HasField("num_images") else 1
    return AskedImages(image_requests(model, task, messages, image, options, num_images), ENCODINGS[wanted.encoding])


async def image_answers(
    asked: AskedImages, streams: Sequence[RequestStream], timer: CallTimer
) -> AsyncGenerator[wire.GenerateResponse | End, None]:
    """Of all images, as they come; one End at last."""
    ends: dict[int, End] = {}
    async with aclosing(events_of_all(streams, asked.requests.every)) as events:
        async for index, event in events:
            if isinstance(event, End):
                ends[index] = event
                continue
            answer = wire.GenerateResponse()
            with timer.encoding():
                await _fill(answer, index, event, asked)
            yield answer
    yield end_of_all([end for _, end in sorted(ends.items())])


async def _fill(
    answer: wire.GenerateResponse, index: int, event: Text | Progress | Picture, asked: AskedImages
) -> None:
    if isinstance(event, Text):
        answer.text.text, answer.text.num_tokens = event.text, event.num_tokens
        answer.text.thought, answer.text.image_index = True, index
    elif isinstance(event, Picture):
        answer.image.image_index, answer.image.seed = index, asked.requests.seeds[index]
        await fill_image(answer.image.image, event.pixels, asked.encoding)
    else:
        progress = answer.progress
        progress.image_index, progress.step, progress.num_steps = index, event.step, asked.requests.num_steps
        if event.preview is not None:
            await fill_image(progress.preview, event.preview, asked.encoding)
        if event.latents is not None:
            fill_tensor(progress.latents, "float32", event.latents.shape, event.latents.tobytes())
