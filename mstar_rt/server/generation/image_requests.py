"""What a client asks of a model that makes images: one request of its task for each image."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.model.generation import ImageSpec
from mstar_rt.server.generation.image_events import Every
from mstar_rt.server.generation.requests import (
    Messages,
    Options,
    abilities,
    conversation_input,
    generation_of,
    largest,
    option_names,
    params_of,
)
from mstar_rt.server.inputs import TaskInput
from mstar_rt.server.request_stream import RequestStream

MAX_NUM_IMAGES = 16

Start = Callable[[TaskInput, int], RequestStream]
"""Of a call's request number i, which for images makes image i."""


@dataclass(frozen=True)
class ImageRequests:
    """`inputs` and `seeds` have one entry for each image. `num_steps` 0: the model has no such option."""

    inputs: list[TaskInput]
    seeds: list[int]
    num_steps: int
    every: Every


def image_spec(model: ServedModel) -> ImageSpec:
    """Raises:  InvalidArgument: the model does not make images."""
    images = generation_of(model).images
    if images is None:
        raise InvalidArgument(f"model {model.name!r} does not make images, it {abilities(model)}: ask another model")
    return images


def drawing_task(model: ServedModel, think: bool | None) -> str:
    """Raises:  InvalidArgument: the model does not draw, or does not think before."""
    images = image_spec(model)
    if think:
        if not images.think:
            raise InvalidArgument(f"model {model.name!r} does not think before it draws: leave `think` unset")
        return images.think
    if not images.draw:
        raise InvalidArgument(f"model {model.name!r} edits images only: send one, or ask another model")
    return images.draw


def editing_task(model: ServedModel, think: bool | None) -> str:
    """Raises:  InvalidArgument: the model does not edit, or is to think before."""
    images = image_spec(model)
    if not images.edit:
        raise InvalidArgument(f"model {model.name!r} does not edit images: send text only, or ask another model")
    if think:
        raise InvalidArgument(f"model {model.name!r} does not think before it edits: leave `think` unset")
    return images.edit


def refuse_misplaced(model: ServedModel, task: str, options: Iterable[str]) -> None:
    """Raises:  InvalidArgument: an option that other images of the model have, and those of `task` cannot have."""
    images, own = image_spec(model), option_names(model, task)
    of_plan, of_edit = (option_names(model, other) if other else frozenset() for other in (images.think, images.edit))
    for name in options:
        if name in own:
            continue
        if task == images.edit and name in ("height", "width"):
            raise InvalidArgument(f"{name} is given, but an edit has the size of its image: leave it out")
        if name in of_plan:
            raise InvalidArgument(
                f"{name} is of the plan, which model {model.name!r} does not write before it edits: leave it out"
                if task == images.edit
                else f"{name} is of the plan, which is written with `think`: set `think`, or leave {name} out"
            )
        if name in of_edit:
            raise InvalidArgument(f"{name} is of edits only: leave it out, or give an image to edit")


def image_requests(
    model: ServedModel,
    task: str,
    messages: Messages,
    image: np.ndarray | None,
    options: Options,
    num_images: int = 1,
) -> ImageRequests:
    """`task` is one of ImageSpec; image [H, W, 3] uint8 RGB is what is to be edited. Image i has the given seed + i.

    Raises:  InvalidArgument: no turns that make an image, an image too many or none, too many images. Options are
             checked when the requests start, see ServedModel.check_request.
    """
    _check_turns(messages)
    is_edit = task == image_spec(model).edit
    if is_edit and image is None:
        raise InvalidArgument(f"task {task!r} edits an image, and the request has none: put it into the user's turn")
    if not is_edit and image is not None:
        raise InvalidArgument(f"task {task!r} makes images of text only: leave the image out, or ask for an edit")
    if not 1 <= num_images <= MAX_NUM_IMAGES:
        raise InvalidArgument(f"num_images is {num_images}, expected 1 to {MAX_NUM_IMAGES}")
    tensors = conversation_input(model, task, messages)
    if image is not None:
        tensors["image"] = image
    params = params_of(model, task, options, num_images)
    seeds = _seeds(model, task, params["seed"], num_images)
    numbers = {spec.name: params.get(spec.name, spec.default) for spec in model.task(task).params}
    return ImageRequests(
        [TaskInput(task, tensors, {**params, "seed": seed}, num_together=num_images) for seed in seeds],
        seeds,
        _whole(numbers.get("num_denoise_steps")),
        Every(_whole(numbers.get("preview_every")), _whole(numbers.get("latents_every"))),
    )


@asynccontextmanager
async def all_started(inputs: Sequence[TaskInput], start: Start) -> AsyncIterator[Sequence[RequestStream]]:
    """All requests of a call, at once: workers batch them. All are taken back when the block ends before they did, or
    one of them cannot start.

    Raises:  what `start` raises.
    """
    async with AsyncExitStack() as streams:
        yield [await streams.enter_async_context(start(given, i)) for i, given in enumerate(inputs)]


def id_of(request_id: str, index: int) -> str:
    """The id of a call's request number `index`."""
    return f"{request_id}-{index}" if index else request_id


def _check_turns(messages: Messages) -> None:
    roles = [role for role, _ in messages]
    if roles not in (["user"], ["system", "user"]):
        raise InvalidArgument(
            f"images are made of one turn of the user, after at most one of the system; the request has "
            f"{', '.join(roles[:8]) or 'no turns'}"
        )


def _seeds(model: ServedModel, task: str, first: object, num_images: int) -> list[int]:
    if not isinstance(first, int) or isinstance(first, bool):
        raise InvalidArgument(f"option 'seed' is {first!r}, expected a whole number")
    most = largest(next(spec for spec in model.task(task).params if spec.name == "seed"))
    if num_images > 1 and first + num_images - 1 > most:
        raise InvalidArgument(
            f"seed is {first}, and the last of {num_images} images has seed + {num_images - 1}: expected at most "
            f"{most - num_images + 1}"
        )
    return list(range(first, first + num_images))


def _whole(value: object) -> int:
    """What is none is refused when the request starts."""
    return value if isinstance(value, int) and value > 0 else 0
