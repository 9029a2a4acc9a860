"""What a client asks of a generator, by whatever wire it came, to what the model's task takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Playback
from mstar_rt.model import ParamSpec, ParamValue, ServedModel
from mstar_rt.model.conversation import read_conversation, write_conversation, write_text
from mstar_rt.model.generation import ChatSpec, GenerationSpec, SpeechSpec
from mstar_rt.server.control.seeds import random_seed
from mstar_rt.server.inputs import TaskInput

MAX_PLAYBACK_BUFFER_S = 3600.0
LARGEST_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
"""Each step looks for all of them in what was written."""

Image = TypeVar("Image")
Options = Mapping[str, Any]
"""By the names of model.generation, those only that the client gives; `stop` is a list of strings, or one."""
Messages = Sequence[tuple[str, str]]
"""(role, content), oldest first."""


def generation_of(model: ServedModel) -> GenerationSpec:
    """Raises:  InvalidArgument: the model is no generator."""
    if model.generation is None:
        names = ", ".join(repr(task.name) for task in model.tasks)
        raise InvalidArgument(f"model {model.name!r} generates nothing, its tasks are {names}: ask another model")
    return model.generation


def chat_spec(model: ServedModel) -> ChatSpec:
    """Raises:  InvalidArgument: the model does not write."""
    chat = generation_of(model).chat
    if chat is None:
        raise InvalidArgument(f"model {model.name!r} does not chat, it {abilities(model)}: ask another model")
    return chat


def speech_spec(model: ServedModel) -> SpeechSpec:
    """Raises:  InvalidArgument: the model does not speak."""
    speech = generation_of(model).speech
    if speech is None:
        raise InvalidArgument(f"model {model.name!r} does not speak, it {abilities(model)}: ask another model")
    return speech


def only_image(messages: Messages, images: Sequence[tuple[int, Image]]) -> Image | None:
    """Of `images`, each with the index of its message.

    Raises:  InvalidArgument: there are several, or it is not where models see it, before all that is said.
    """
    if not images:
        return None
    if len(images) > 1:
        raise InvalidArgument(
            f"turn {images[1][0]} has the second of {len(images)} images, models here look at one: leave the others out"
        )
    index, image = images[0]
    if messages[index][0] != "user":
        raise InvalidArgument(f"turn {index} of {messages[index][0]!r} has an image, expected it in one of 'user'")
    if any(role == "user" for role, _ in messages[:index]):
        raise InvalidArgument(
            f"turn {index} has an image, but models see it before all that is said: put it into the user's first turn"
        )
    return image


def chat_input(model: ServedModel, messages: Messages, options: Options, image: np.ndarray | None = None) -> TaskInput:
    """The answer follows the last of `messages`, which is the user's. image [H, W, 3] uint8 RGB.

    Raises:  InvalidArgument: the model does not write, or does not look at images, there is no conversation, a stop
             string that cannot be one. Options are checked when the request starts, see ServedModel.check_request.
    """
    task = chat_task(model, image is not None)
    tensors = conversation_input(model, task, messages)
    if messages[-1][0] != "user":
        raise InvalidArgument(f"the conversation ends with a turn of {messages[-1][0]!r}, expected one of 'user'")
    if image is not None:
        tensors["image"] = image
    return TaskInput(task, tensors, params_of(model, task, options))


def chat_task(model: ServedModel, has_image: bool) -> str:
    """Raises:  InvalidArgument: the model does not write, or does not look at images."""
    chat = chat_spec(model)
    if has_image and not chat.image_task:
        raise InvalidArgument(f"model {model.name!r} does not look at images: send text only, or ask another model")
    return chat.image_task if has_image else chat.task


def speech_input(model: ServedModel, text: str, options: Options, playback_buffer_s: float = 0.0) -> TaskInput:
    """`playback_buffer_s`: seconds of sound that the player gathers before it starts.

    Raises:  InvalidArgument: the model does not speak, the text has no word, a buffer out of range. Options: see
             `chat_input`.
    """
    spec = speech_spec(model)
    _check_length(model, spec.task, "text", len(text))
    if not text.strip():
        raise InvalidArgument("the text to speak is empty, expected at least a word")
    if not 0 <= playback_buffer_s <= MAX_PLAYBACK_BUFFER_S:  # NaN is not
        limit = f"{MAX_PLAYBACK_BUFFER_S:.0f}"
        raise InvalidArgument(f"playback_buffer_s is {playback_buffer_s}, expected 0 to {limit} seconds")
    playback = Playback("audio", spec.sample_rate_hz, playback_buffer_s)
    params = params_of(model, spec.task, options)
    return TaskInput(spec.task, {"text": write_text(text)}, params, playback=playback)


def abilities(model: ServedModel) -> str:
    """What it does, as "chats and speaks"."""
    generation = generation_of(model)
    known = (("chats", generation.chat), ("speaks", generation.speech), ("makes images", generation.images))
    return " and ".join(verb for verb, spec in known if spec is not None)


def conversation_input(model: ServedModel, task: str, messages: Messages) -> dict[str, np.ndarray]:
    """Raises:  InvalidArgument: it is too long for the task, or no conversation."""
    _check_length(model, task, "conversation", sum(len(role) + len(content) for role, content in messages))
    conversation = write_conversation({"role": role, "content": content} for role, content in messages)
    read_conversation(conversation)
    return {"conversation": conversation}


def _check_length(model: ServedModel, task: str, name: str, num_characters: int) -> None:
    """Before anything is made of it: megabytes of text would hold up the event loop."""
    spec = next(spec for spec in model.task(task).inputs if spec.name == name)
    limit = dict(spec.max_sizes).get(str(spec.shape[0]))
    if limit is not None and num_characters > limit:
        raise InvalidArgument(
            f"{model.name}.{task}: the {name} has {num_characters} characters, the limit of this model is {limit} bytes"
        )


def params_of(model: ServedModel, task: str, options: Options, num_seeds: int = 1) -> dict[str, ParamValue]:
    """With a fresh seed where the model draws one and the client gives none, one that `num_seeds - 1` may follow.

    Raises:  InvalidArgument: a seed that is out of range, a stop string that cannot be one.
    """
    params: dict[str, ParamValue] = {}
    for name, value in options.items():
        params[name] = _stop_text(value) if name == "stop" else value
    seed = next((spec for spec in model.task(task).params if spec.name == "seed"), None)
    if seed is not None:
        least, most = int(seed.minimum or 0), largest(seed)
        given = params.setdefault("seed", least + random_seed() % max(most - least + 2 - num_seeds, 1))
        if isinstance(given, int) and not least <= given <= most:
            raise InvalidArgument(f"seed is {given}, expected {least} to {most}")
    return params


def option_names(model: ServedModel, task: str) -> frozenset[str]:
    return frozenset(spec.name for spec in model.task(task).params)


def largest(seed: ParamSpec) -> int:
    """The largest seed of the option `seed`."""
    return LARGEST_SEED if seed.maximum is None else int(seed.maximum)


def _stop_text(stops: object) -> str:
    """As tasks take the strings that end a text.

    Raises:  InvalidArgument: not a list of a few short strings.
    """
    listed = [stops] if isinstance(stops, str) else stops
    if not isinstance(listed, Sequence) or not all(isinstance(stop, str) for stop in listed):
        raise InvalidArgument("stop is no list of strings")
    if not 1 <= len(listed) <= MAX_STOPS:
        raise InvalidArgument(f"stop has {len(listed)} strings, expected 1 to {MAX_STOPS}")
    for stop in listed:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidArgument(f"a stop string has {len(stop)} characters, expected 1 to {MAX_STOP_CHARACTERS}")
    return json.dumps(listed, ensure_ascii=False)
