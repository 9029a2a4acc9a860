"""`GenerationSpec`: what a model that writes or speaks declares, so that one service serves every kind of generator.

A chat task takes `conversation`, uint8 [N]: see `model.conversation`. It emits, at each decode step,

    text               uint8 [B], UTF-8 of the characters that are complete now; B may be 0. A stop string, and what may
                       become one, is held back
    token              int64 [1], the token that was sampled

and at the end `reason`, int64 [], see `Reason`, and `num_input_tokens`, int64 []. A speech task takes `text`, uint8
[N], UTF-8, and emits

    audio              float32 [S], -1 to 1, one chunk after the other, without gap or overlap

and at the end `reason`, and `num_input_tokens` and `num_output_tokens`, int64 [], where the model counts them. Options
of both, each only where the model has a use for it; none may be required, as a client leaves out what it does not mind:

    max_tokens, temperature (0: greedy), top_k (0: no limit), top_p, repetition_penalty (1: none), seed
    ignore_end         goes on to max_tokens, for measurements
    stop               chat only: JSON, a list of strings that end the text
    voice, speed       speech only; 1 is the normal speed

What is too long is refused with InvalidArgument and the limit, never cut; so is a text without a word. A text or a
conversation of one zero byte is the warm-up's, and is answered like any other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mstar_rt.errors import GraphError, nearest

if TYPE_CHECKING:
    from mstar_rt.model.served import ServedModel, TaskSpec
    from mstar_rt.model.spec import TensorSpec

TOKEN_OPTIONS = {
    "max_tokens": "int", "temperature": "float", "top_k": "int", "top_p": "float", "repetition_penalty": "float",
    "ignore_end": "bool", "seed": "int",
}  # fmt: skip
CHAT_OPTIONS = {**TOKEN_OPTIONS, "stop": "str"}
SPEECH_OPTIONS = {**TOKEN_OPTIONS, "voice": "str", "speed": "float"}
"""What these options are called wherever a task has them, and of which kind they are."""


class Reason(enum.IntEnum):
    """Why a generation ended, with the numbers of the wire (GenerateDone.Reason)."""

    END = 1
    STOP = 2
    MAX_TOKENS = 3
    DEADLINE = 4


@dataclass(frozen=True)
class ChatSpec:
    """`warm_up_tokens` is the `max_tokens` of the requests that warm up, where the task has that option."""

    task: str = "chat"
    warm_up_tokens: int = 4


@dataclass(frozen=True)
class SpeechSpec:
    """`voices` are the choices of the option `voice`, `default_voice` its default; without voices there is none.
    `warm_up_tokens`: see ChatSpec."""

    task: str = "speech"
    sample_rate_hz: int = 24_000
    voices: tuple[str, ...] = ()
    default_voice: str = ""
    warm_up_tokens: int = 32


@dataclass(frozen=True)
class GenerationSpec:
    chat: ChatSpec | None = None
    speech: SpeechSpec | None = None


def warm_up_options(model: ServedModel, task: TaskSpec) -> dict[str, int]:
    """What a warm-up asks for in place of defaults: a first run shall not write a whole text."""
    generation = model.generation or GenerationSpec()
    for spec in (generation.chat, generation.speech):
        if spec is not None and spec.task == task.name and any(param.name == "max_tokens" for param in task.params):
            return {"max_tokens": spec.warm_up_tokens}
    return {}


def check_generation(model: ServedModel) -> None:
    """Raises:  GraphError: what the model generates does not fit its tasks."""
    generation = model.generation
    if generation is None:
        return
    where = f"model {model.name!r}, its generation"
    if generation.chat is None and generation.speech is None:
        raise GraphError(f"{where} names no task, expected chat or speech")
    if generation.chat is not None:
        _check_chat(_task(model, generation.chat.task, where), where)
    if generation.speech is not None:
        _check_speech(generation.speech, _task(model, generation.speech.task, where), where)
    tasks = [spec.task for spec in (generation.chat, generation.speech) if spec is not None]
    if len(set(tasks)) < len(tasks):
        raise GraphError(f"{where}: task {tasks[0]!r} is for chat and for speech, expected two tasks")


def _task(model: ServedModel, name: str, where: str) -> TaskSpec:
    for task in model.tasks:
        if task.name != name:
            continue
        if task.criticality != "generation":
            raise GraphError(f"{where}: task {name!r} has criticality {task.criticality!r}, expected 'generation'")
        if task.session_inputs:
            needed = ", ".join(repr(name) for name, _ in task.session_inputs)
            raise GraphError(f"{where}: task {name!r} needs {needed} from an earlier request, and there is none")
        return task
    raise GraphError(f"{where} has the task {name!r}, {nearest(name, [task.name for task in model.tasks])}")


def _check_chat(task: TaskSpec, where: str) -> None:
    _check_input(task, "conversation", where)
    outputs = {spec.name: spec for spec in task.outputs}
    _check_output(outputs, task, "text", "uint8", (None,), where)
    if not outputs["text"].optional:
        raise GraphError(f"{where}: output 'text' of task {task.name!r} is not optional, but a step may give no text")
    _check_output(outputs, task, "token", "int64", (1,), where)
    _check_output(outputs, task, "reason", "int64", (), where)
    _check_output(outputs, task, "num_input_tokens", "int64", (), where)
    _check_options(task, CHAT_OPTIONS, where)


def _check_speech(speech: SpeechSpec, task: TaskSpec, where: str) -> None:
    if speech.sample_rate_hz < 1:
        raise GraphError(f"{where} has sample_rate_hz {speech.sample_rate_hz}, expected at least 1")
    _check_input(task, "text", where)
    outputs = {spec.name: spec for spec in task.outputs}
    _check_output(outputs, task, "audio", "float32", (None,), where)
    _check_output(outputs, task, "reason", "int64", (), where)
    for name in ("num_input_tokens", "num_output_tokens"):
        if name in outputs:
            _check_output(outputs, task, name, "int64", (), where)
    _check_options(task, SPEECH_OPTIONS, where)
    voice = next((param for param in task.params if param.name == "voice"), None)
    choices, default = (voice.choices, voice.default or "") if voice is not None else ((), "")
    if tuple(choices) != speech.voices or default != speech.default_voice:
        raise GraphError(
            f"{where} has the voices {', '.join(speech.voices) or 'of none'} and the default {speech.default_voice!r}, "
            f"but option 'voice' of task {task.name!r} has {', '.join(choices) or 'none'} and {default!r}"
        )
    if speech.voices and speech.default_voice not in speech.voices:
        raise GraphError(f"{where} has the default voice {speech.default_voice!r}, {nearest(default, speech.voices)}")


def _check_input(task: TaskSpec, name: str, where: str) -> None:
    """It takes `name`, uint8 [N], and needs nothing else."""
    inputs = {spec.name: spec for spec in task.inputs}
    spec = inputs.get(name)
    if spec is None:
        raise GraphError(f"{where}: task {task.name!r} has no input {name!r}, {nearest(name, inputs)}")
    if spec.dtypes != ("uint8",) or len(spec.shape) != 1 or not isinstance(spec.shape[0], str) or spec.optional:
        raise GraphError(f"{where}: input {name!r} of task {task.name!r} is not uint8 ['N'], always given")
    for other in inputs.values():
        if other.name != name and not other.optional:
            raise GraphError(f"{where}: task {task.name!r} needs {other.name!r}, which no client gives")
    if task.one_of:
        raise GraphError(f"{where}: task {task.name!r} needs one of {', '.join(task.one_of[0])}, which no client gives")


def _check_output(
    outputs: Mapping[str, TensorSpec], task: TaskSpec, name: str, dtype: str, shape: tuple[int | None, ...], where: str
) -> None:
    """`shape` has None where any size goes."""
    spec = outputs.get(name)
    if spec is None:
        raise GraphError(f"{where}: task {task.name!r} has no output {name!r}, {nearest(name, outputs)}")
    sizes = tuple(size if isinstance(size, int) else None for size in spec.shape)
    if spec.dtypes != (dtype,) or sizes != shape:
        expected = ["any" if size is None else size for size in shape]
        raise GraphError(f"{where}: output {name!r} of task {task.name!r} is not {dtype} {expected}")


def _check_options(task: TaskSpec, kinds: Mapping[str, str], where: str) -> None:
    for param in task.params:
        kind = kinds.get(param.name)
        if kind is not None and param.kind != kind:
            raise GraphError(f"{where}: option {param.name!r} of task {task.name!r} is {param.kind}, expected {kind}")
        if param.default is None and not param.optional:
            raise GraphError(f"{where}: option {param.name!r} of task {task.name!r} is required, expected a default")
