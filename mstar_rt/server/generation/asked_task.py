"""Which task of a model a GenerateRequest is for."""

from __future__ import annotations

from mstar_rt.errors import InvalidArgument, NotFound, nearest
from mstar_rt.model import ServedModel
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.server.generation.image_requests import drawing_task, editing_task
from mstar_rt.server.generation.requests import chat_task, generation_of, speech_spec


def asked_task(model: ServedModel, request: wire.GenerateRequest, has_image: bool) -> str:
    """Raises:  NotFound: the model has no such task.
    InvalidArgument: it generates nothing, an image or `think` does not fit the task, nobody says which of several.
    """
    if request.HasField("task"):
        return _named(model, request, has_image)
    generation = generation_of(model)
    if generation.images is not None and (request.image.ListFields() or generation.tasks == generation.images.tasks):
        think = request.image.think
        return editing_task(model, think) if has_image else drawing_task(model, think)
    if generation.chat is not None and generation.speech is None and generation.images is None:
        return chat_task(model, has_image)
    if generation.speech is not None and generation.chat is None and generation.images is None:
        return speech_spec(model).task
    raise InvalidArgument(f"model {model.name!r} generates by several tasks, give one of {', '.join(generation.tasks)}")


def _named(model: ServedModel, request: wire.GenerateRequest, has_image: bool) -> str:
    generation, task = generation_of(model), request.task
    if task not in generation.tasks:
        raise NotFound(f"model {model.name!r} generates nothing by task {task!r}, {nearest(task, generation.tasks)}")
    if generation.chat is not None and task in (generation.chat.task, generation.chat.image_task):
        if task == generation.chat.image_task and not has_image:
            raise InvalidArgument(f"task {task!r} looks at an image, and the request has none: put it into a turn")
        return chat_task(model, has_image)
    if generation.images is not None and task in generation.images.tasks:
        think = request.image.think if request.image.HasField("think") else None
        if task == generation.images.edit:
            return editing_task(model, think)
        if task == generation.images.think and think is False:
            raise InvalidArgument(f"task {task!r} thinks before it draws, and `think` is false: leave it unset")
        return drawing_task(model, think or task == generation.images.think)
    return task
