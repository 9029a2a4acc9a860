"""Whether what a model generates fits its tasks, see `model.generation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstar_rt.errors import GraphError, nearest
from mstar_rt.model.generation import CHAT_OPTIONS, IMAGE_OPTIONS, SPEECH_OPTIONS, ChatSpec, ImageSpec, SpeechSpec

if TYPE_CHECKING:
    from mstar_rt.model.served import ServedModel, TaskSpec
    from mstar_rt.model.spec import ParamSpec, TensorSpec

PIXELS = (None, None, 3)


def check_generation(model: ServedModel) -> None:
    """Raises:  GraphError: what the model generates does not fit its tasks."""
    generation = model.generation
    if generation is None:
        return
    where = f"model {model.name!r}, its generation"
    if generation.chat is None and generation.speech is None and generation.images is None:
        raise GraphError(f"{where} names no task, expected chat, speech or images")
    if generation.chat is not None:
        _check_chats(model, generation.chat, where)
    if generation.speech is not None:
        _check_speech(generation.speech, _task(model, generation.speech.task, where), where)
    if generation.images is not None:
        _check_images(model, generation.images, where)
    for name in generation.tasks:
        if generation.tasks.count(name) > 1:
            raise GraphError(f"{where}: task {name!r} is named twice, expected a task for each use")


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


def _check_chats(model: ServedModel, chat: ChatSpec, where: str) -> None:
    for name, has_image in ((chat.task, False), (chat.image_task, True)):
        if has_image and not name:
            continue
        task = _task(model, name, where)
        _check_inputs(task, "conversation", where, has_image)
        _check_text(task, where)
        _check_output(task, "num_input_tokens", "int64", (), where)
        _check_options(task, CHAT_OPTIONS, where)


def _check_text(task: TaskSpec, where: str) -> None:
    """What is written as it is, and why it ended."""
    _check_optional_output(task, "text", "uint8", (None,), where)
    _check_output(task, "token", "int64", (1,), where)
    _check_output(task, "reason", "int64", (), where)


def _check_speech(speech: SpeechSpec, task: TaskSpec, where: str) -> None:
    if speech.sample_rate_hz < 1:
        raise GraphError(f"{where} has sample_rate_hz {speech.sample_rate_hz}, expected at least 1")
    _check_inputs(task, "text", where)
    _check_output(task, "audio", "float32", (None,), where)
    _check_output(task, "reason", "int64", (), where)
    for name in ("num_input_tokens", "num_output_tokens"):
        if _has_output(task, name):
            _check_output(task, name, "int64", (), where)
    _check_options(task, SPEECH_OPTIONS, where)
    voice = _param(task, "voice")
    choices, default = (voice.choices, voice.default or "") if voice is not None else ((), "")
    if tuple(choices) != speech.voices or default != speech.default_voice:
        raise GraphError(
            f"{where} has the voices {', '.join(speech.voices) or 'of none'} and the default {speech.default_voice!r}, "
            f"but option 'voice' of task {task.name!r} has {', '.join(choices) or 'none'} and {default!r}"
        )
    if speech.voices and speech.default_voice not in speech.voices:
        raise GraphError(f"{where} has the default voice {speech.default_voice!r}, {nearest(default, speech.voices)}")


def _check_images(model: ServedModel, images: ImageSpec, where: str) -> None:
    if not images.draw and not images.edit:
        raise GraphError(f"{where} has images without a task, expected one that draws or one that edits")
    for name, has_image in ((images.draw, False), (images.think, False), (images.edit, True)):
        if not name:
            continue
        task = _task(model, name, where)
        _check_inputs(task, "conversation", where, has_image)
        if name == images.think:
            _check_text(task, where)
        _check_drawing(task, where)
        if not has_image:
            _check_size(images, task, where)


def _check_drawing(task: TaskSpec, where: str) -> None:
    _check_output(task, "image", "uint8", PIXELS, where)
    _check_output(task, "num_input_tokens", "int64", (), where)
    _check_options(task, IMAGE_OPTIONS, where)
    if _param(task, "seed") is None:
        raise GraphError(f"{where}: task {task.name!r} has no option 'seed', by which images of one call differ")
    if _has_output(task, "step"):
        _check_output(task, "step", "int64", (), where)
    for name, dtype, shape in (("preview", "uint8", PIXELS), ("latents", "float32", (None, None))):
        if not _has_output(task, name) and _param(task, f"{name}_every") is None:
            continue
        if not _has_output(task, "step") or _param(task, f"{name}_every") is None:
            raise GraphError(
                f"{where}: output {name!r} of task {task.name!r} comes with output 'step' and option '{name}_every', "
                "expected all of them or none"
            )
        _check_optional_output(task, name, dtype, shape, where)


def _check_size(images: ImageSpec, task: TaskSpec, where: str) -> None:
    if len(images.default_size) != 2 or min(images.default_size) < 1:
        raise GraphError(f"{where} has default_size {images.default_size}, expected (height, width) in pixels")
    for name, pixels in zip(("height", "width"), images.default_size, strict=True):
        param = _param(task, name)
        if param is not None and param.default != pixels:
            raise GraphError(
                f"{where} has the default {name} {pixels}, but option {name!r} of task {task.name!r} has "
                f"{param.default}"
            )


def _check_inputs(task: TaskSpec, name: str, where: str, has_image: bool = False) -> None:
    """It takes `name`, uint8 [N], and an image if it shall, and needs nothing else."""
    inputs = {spec.name: spec for spec in task.inputs}
    wanted: dict[str, tuple[int | None, ...]] = {name: (None,), **({"image": PIXELS} if has_image else {})}
    for each, shape in wanted.items():
        spec = inputs.get(each)
        if spec is None:
            raise GraphError(f"{where}: task {task.name!r} has no input {each!r}, {nearest(each, inputs)}")
        if spec.dtypes != ("uint8",) or _sizes(spec) != shape or spec.optional:
            expected = "['N']" if each == name else "['H', 'W', 3]"
            raise GraphError(f"{where}: input {each!r} of task {task.name!r} is not uint8 {expected}, always given")
    for other in inputs.values():
        if other.name not in wanted and not other.optional:
            raise GraphError(f"{where}: task {task.name!r} needs {other.name!r}, which no client gives")
    if task.one_of:
        raise GraphError(f"{where}: task {task.name!r} needs one of {', '.join(task.one_of[0])}, which no client gives")


def _check_optional_output(task: TaskSpec, name: str, dtype: str, shape: tuple[int | None, ...], where: str) -> None:
    _check_output(task, name, dtype, shape, where)
    if not next(spec for spec in task.outputs if spec.name == name).optional:
        raise GraphError(
            f"{where}: output {name!r} of task {task.name!r} is not optional, but there are steps without one"
        )


def _check_output(task: TaskSpec, name: str, dtype: str, shape: tuple[int | None, ...], where: str) -> None:
    """`shape` has None where any size goes."""
    outputs = {spec.name: spec for spec in task.outputs}
    spec = outputs.get(name)
    if spec is None:
        raise GraphError(f"{where}: task {task.name!r} has no output {name!r}, {nearest(name, outputs)}")
    if spec.dtypes != (dtype,) or _sizes(spec) != shape:
        expected = ["any" if size is None else size for size in shape]
        raise GraphError(f"{where}: output {name!r} of task {task.name!r} is not {dtype} {expected}")


def _sizes(spec: TensorSpec) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in spec.shape)


def _has_output(task: TaskSpec, name: str) -> bool:
    return any(spec.name == name for spec in task.outputs)


def _param(task: TaskSpec, name: str) -> ParamSpec | None:
    return next((param for param in task.params if param.name == name), None)


def _check_options(task: TaskSpec, kinds: Mapping[str, str], where: str) -> None:
    for param in task.params:
        kind = kinds.get(param.name)
        if kind is not None and param.kind != kind:
            raise GraphError(f"{where}: option {param.name!r} of task {task.name!r} is {param.kind}, expected {kind}")
        if param.default is None and not param.optional:
            raise GraphError(f"{where}: option {param.name!r} of task {task.name!r} is required, expected a default")
