"""What a client asks of a generator, by whatever wire it came, to what the model's task takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.message import Playback
from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.model.conversation import read_conversation, write_conversation, write_text
from mstar_rt.model.generation import ChatSpec, GenerationSpec, SpeechSpec
from mstar_rt.server.control.seeds import random_seed
from mstar_rt.server.inputs import TaskInput

MAX_PLAYBACK_BUFFER_S = 3600.0
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
"""Each step looks for all of them in what was written."""

Options = Mapping[str, Any]
"""By the names of model.generation, those only that the client gives; `stop` is a list of strings, or one."""


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
        raise InvalidArgument(f"model {model.name!r} does not chat, it {_abilities(model)}: ask another model")
    return chat


def speech_spec(model: ServedModel) -> SpeechSpec:
    """Raises:  InvalidArgument: the model does not speak."""
    speech = generation_of(model).speech
    if speech is None:
        raise InvalidArgument(f"model {model.name!r} does not speak, it {_abilities(model)}: ask another model")
    return speech


def chat_input(model: ServedModel, messages: Sequence[tuple[str, str]], options: Options) -> TaskInput:
    """`messages` are (role, content), oldest first; the answer follows the last, which is the user's.

    Raises:  InvalidArgument: the model does not write, there is no conversation, a stop string that cannot be one.
             Options are checked when the request starts, see ServedModel.check_request.
    """
    task = chat_spec(model).task
    _check_length(model, task, "conversation", sum(len(role) + len(content) for role, content in messages))
    conversation = write_conversation({"role": role, "content": content} for role, content in messages)
    read_conversation(conversation)
    if messages[-1][0] != "user":
        raise InvalidArgument(f"the conversation ends with a turn of {messages[-1][0]!r}, expected one of 'user'")
    return TaskInput(task, {"conversation": conversation}, _params(model, task, options))


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
    params = _params(model, spec.task, options)
    return TaskInput(spec.task, {"text": write_text(text)}, params, playback=playback)


def _abilities(model: ServedModel) -> str:
    return "speaks" if generation_of(model).chat is None else "chats"


def _check_length(model: ServedModel, task: str, name: str, num_characters: int) -> None:
    """Before anything is made of it: megabytes of text would hold up the event loop."""
    spec = next(spec for spec in model.task(task).inputs if spec.name == name)
    limit = dict(spec.max_sizes).get(str(spec.shape[0]))
    if limit is not None and num_characters > limit:
        raise InvalidArgument(
            f"{model.name}.{task}: the {name} has {num_characters} characters, the limit of this model is {limit} bytes"
        )


def _params(model: ServedModel, task: str, options: Options) -> dict[str, ParamValue]:
    """With a fresh seed where the model draws one and the client gives none."""
    params: dict[str, ParamValue] = {}
    for name, value in options.items():
        params[name] = _stop_text(value) if name == "stop" else value
    seed = next((spec for spec in model.task(task).params if spec.name == "seed"), None)
    if seed is not None and "seed" not in params:
        least, most = int(seed.minimum or 0), int(2**63 - 1 if seed.maximum is None else seed.maximum)
        params["seed"] = least + random_seed() % (most - least + 1)
    return params


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
