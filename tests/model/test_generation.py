"""Which models fit Generation.Generate, and how conversations travel."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mstar_rt.errors import GraphError, InvalidArgument
from mstar_rt.model import ChatSpec, GenerationSpec, ImageSpec, ParamSpec, ServedModel, SpeechSpec, TaskSpec, TensorSpec
from mstar_rt.model.conversation import WARM_UP, read_conversation, read_text, write_conversation, write_text
from mstar_rt.model.generation import warm_up_options
from mstar_rt.model.generation_check import check_generation


def spec(name: str, shape: tuple[int | str, ...], dtype: str, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, shape, (dtype,), "", optional=optional)


ENDS = (spec("reason", (), "int64"), spec("num_input_tokens", (), "int64"))
CHAT = TaskSpec(
    "chat", "", (spec("conversation", ("N",), "uint8"),),
    (spec("text", ("B",), "uint8", optional=True), spec("token", (1,), "int64"), *ENDS), ("chat",),
    params=(ParamSpec("max_tokens", "int", 8, ""), ParamSpec("stop", "str", "[]", "")), criticality="generation",
)  # fmt: skip
SPEECH = TaskSpec(
    "speech", "", (spec("text", ("N",), "uint8"),), (spec("audio", ("S",), "float32"), ENDS[0]), ("speech",),
    params=(ParamSpec("voice", "str", "tara", "", choices=("tara", "leo")),), criticality="generation",
)  # fmt: skip
IMAGE = spec("image", ("H", "W", 3), "uint8")
DRAW = TaskSpec(
    "text_to_image", "", CHAT.inputs,
    (
        spec("step", (), "int64"), spec("preview", ("H", "W", 3), "uint8", optional=True),
        spec("latents", ("T", "D"), "float32", optional=True), IMAGE, ENDS[1],
    ),
    ("draw",),
    params=(
        ParamSpec("seed", "int", None, "", optional=True), ParamSpec("height", "int", 32, ""),
        ParamSpec("width", "int", 48, ""), ParamSpec("num_denoise_steps", "int", 49, ""),
        ParamSpec("preview_every", "int", 0, ""), ParamSpec("latents_every", "int", 0, ""),
    ),
    criticality="generation",
)  # fmt: skip
THINK = dataclasses.replace(
    DRAW,
    name="think_and_draw",
    outputs=(*CHAT.outputs[:2], *DRAW.outputs, ENDS[0]),
    params=(*CHAT.params, *DRAW.params),
)
EDIT = dataclasses.replace(
    DRAW, name="edit_image", inputs=(*CHAT.inputs, IMAGE), params=(DRAW.params[0], *DRAW.params[3:])
)
SEE = dataclasses.replace(CHAT, name="describe_image", inputs=(*CHAT.inputs, IMAGE))
IMAGES = ImageSpec("text_to_image", "think_and_draw", "edit_image", (32, 48))
ALL = GenerationSpec(chat=ChatSpec(image_task="describe_image"), images=IMAGES)
VOICES = SpeechSpec(voices=("tara", "leo"), default_voice="tara")
BOTH = GenerationSpec(ChatSpec(), VOICES)


def model(generation: GenerationSpec | None, *tasks: TaskSpec) -> ServedModel:
    return cast(ServedModel, SimpleNamespace(name="toy", generation=generation, tasks=tasks))


def test_models_that_fit() -> None:
    check_generation(model(BOTH, CHAT, SPEECH))
    check_generation(model(None, CHAT))
    optional = dataclasses.replace(CHAT, inputs=(*CHAT.inputs, spec("image", (2, 2), "uint8", optional=True)))
    check_generation(model(GenerationSpec(chat=ChatSpec()), optional))
    assert warm_up_options(model(BOTH, CHAT, SPEECH), CHAT) == {"max_tokens": ChatSpec().warm_up_tokens}
    assert warm_up_options(model(BOTH, CHAT, SPEECH), SPEECH) == {}


def test_images_that_fit() -> None:
    full = model(ALL, CHAT, SEE, DRAW, THINK, EDIT)
    check_generation(full)
    assert ALL.tasks == ("chat", "describe_image", "text_to_image", "think_and_draw", "edit_image")
    assert warm_up_options(full, DRAW) == warm_up_options(full, EDIT) == {"num_denoise_steps": IMAGES.warm_up_steps}
    assert warm_up_options(full, THINK) == {"num_denoise_steps": 2, "max_tokens": IMAGES.warm_up_tokens}
    assert warm_up_options(full, SEE) == warm_up_options(full, CHAT) == {"max_tokens": ChatSpec().warm_up_tokens}
    silent = dataclasses.replace(DRAW, outputs=DRAW.outputs[3:], params=DRAW.params[:1])
    check_generation(model(GenerationSpec(images=ImageSpec(draw="text_to_image")), silent))
    check_generation(model(GenerationSpec(images=ImageSpec(edit="edit_image")), EDIT))


@pytest.mark.parametrize(
    ("images", "changes", "message"),
    [
        (ImageSpec(), {}, "images without a task"),
        (ImageSpec(think="think_and_draw"), {}, "images without a task"),
        (ImageSpec(draw="draw"), {}, "has the task 'draw'"),
        (ImageSpec("text_to_image", edit="text_to_image", default_size=(32, 48)), {}, "has no input 'image'"),
        (ImageSpec("text_to_image", "text_to_image", default_size=(32, 48)), {}, "no output 'text'"),
        (dataclasses.replace(IMAGES, default_size=(48, 32)), {}, "default height 48, but option 'height' .* has 32"),
        (dataclasses.replace(IMAGES, default_size=(0, 48)), {}, "default_size"),
        (IMAGES, {"criticality": "planning"}, "criticality 'planning'"),
        (IMAGES, {"inputs": EDIT.inputs}, "needs 'image', which no client gives"),
        (IMAGES, {"outputs": DRAW.outputs[:3]}, "no output 'image'"),
        (IMAGES, {"outputs": DRAW.outputs[:4]}, "no output 'num_input_tokens'"),
        (IMAGES, {"outputs": (spec("step", (1,), "int64"), *DRAW.outputs[1:])}, r"'step' .* is not int64 \[\]"),
        (IMAGES, {"outputs": (DRAW.outputs[0], IMAGE, *DRAW.outputs[2:])}, "no output 'preview'"),
        (IMAGES, {"outputs": DRAW.outputs[1:]}, "'preview' .* comes with output 'step'"),
        (IMAGES, {"params": DRAW.params[:4]}, "'preview' .* and option 'preview_every'"),
        (IMAGES, {"outputs": (*DRAW.outputs[:2], *DRAW.outputs[3:])}, "no output 'latents'"),
        (IMAGES, {"params": DRAW.params[1:]}, "has no option 'seed'"),
        (IMAGES, {"params": (ParamSpec("height", "float", 32.0, ""), *DRAW.params[2:])}, "'height' .* is float"),
        (
            IMAGES,
            {"outputs": (DRAW.outputs[0], spec("preview", ("H", "W", 3), "uint8"), *DRAW.outputs[2:])},
            "'preview' .* is not optional",
        ),
    ],
)
def test_images_that_do_not_fit(images: ImageSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_generation(model(GenerationSpec(images=images), dataclasses.replace(DRAW, **changes), THINK, EDIT))


def test_a_task_has_one_use_only() -> None:
    twice = GenerationSpec(chat=ChatSpec(image_task="describe_image"), speech=None, images=None)
    blind = model(dataclasses.replace(twice, chat=ChatSpec(image_task="chat")), CHAT, SEE)
    with pytest.raises(GraphError, match="no input 'image'"):
        check_generation(blind)
    both = dataclasses.replace(IMAGES, draw="", think="", edit="edit_image")
    seen = dataclasses.replace(EDIT, outputs=(*CHAT.outputs[:2], ENDS[0], *EDIT.outputs))
    with pytest.raises(GraphError, match="'edit_image' is named twice"):
        check_generation(model(GenerationSpec(chat=ChatSpec(image_task="edit_image"), images=both), CHAT, seen))


@pytest.mark.parametrize(
    ("generation", "changes", "message"),
    [
        (GenerationSpec(), {}, "names no task"),
        (GenerationSpec(chat=ChatSpec("chta")), {}, "has the task 'chta', did you mean 'chat'"),
        (GenerationSpec(ChatSpec(), SpeechSpec("chat")), {}, "expected float32|no input 'text'"),
        (BOTH, {"criticality": "planning"}, "criticality 'planning', expected 'generation'"),
        (BOTH, {"session_inputs": (("turns", "first"),)}, "needs 'turns' from an earlier request"),
        (BOTH, {"one_of": (("a", "b"),)}, "needs one of a, b"),
        (BOTH, {"inputs": ()}, "has no input 'conversation'"),
        (BOTH, {"inputs": (spec("conversation", ("N",), "int8"),)}, "is not uint8"),
        (BOTH, {"inputs": (*CHAT.inputs, spec("image", (1,), "uint8"))}, "needs 'image', which no client gives"),
        (BOTH, {"outputs": CHAT.outputs[1:]}, "has no output 'text'"),
        (BOTH, {"outputs": (spec("text", ("B",), "uint8"), *CHAT.outputs[1:])}, "'text' .* is not optional"),
        (BOTH, {"outputs": (CHAT.outputs[0], spec("token", (), "int64"), *ENDS)}, r"'token' .* is not int64 \[1\]"),
        (BOTH, {"outputs": CHAT.outputs[:3]}, "no output 'num_input_tokens'"),
        (BOTH, {"params": (ParamSpec("stop", "bool", False, ""),)}, "'stop' .* is bool, expected str"),
        (BOTH, {"params": (ParamSpec("magic", "int", None, ""),)}, "'magic' .* is required, expected a default"),
    ],
)
def test_chats_that_do_not_fit(generation: GenerationSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_generation(model(generation, dataclasses.replace(CHAT, **changes), SPEECH))


@pytest.mark.parametrize(
    ("speech", "changes", "message"),
    [
        (dataclasses.replace(VOICES, voices=("tara",)), {}, "has the voices tara"),
        (dataclasses.replace(VOICES, default_voice="leo"), {}, "the default 'leo'"),
        (SpeechSpec(), {}, "has the voices of none"),
        (dataclasses.replace(VOICES, sample_rate_hz=0), {}, "sample_rate_hz 0"),
        (VOICES, {"params": ()}, "has none"),
        (VOICES, {"outputs": (spec("audio", ("S",), "int16"), ENDS[0])}, "'audio' .* is not float32"),
        (VOICES, {"outputs": (*SPEECH.outputs, spec("num_output_tokens", (1,), "int64"))}, "'num_output_tokens'"),
    ],
)
def test_voices_that_do_not_fit(speech: SpeechSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_generation(model(GenerationSpec(speech=speech), dataclasses.replace(SPEECH, **changes)))


def test_conversations_come_back() -> None:
    turns = [{"role": "system", "content": ""}, {"role": "user", "content": 'naïve "日本"\n'}]
    assert read_conversation(write_conversation(turns)) == turns
    assert read_conversation(np.zeros(1, np.uint8)) == [{"role": "user", "content": WARM_UP}]
    assert read_text(write_text("日本"), "text") == "日本"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is not UTF-8"),
        (b"hello", "is not JSON"),
        (b"[]", "has no turns"),
        (b"{}", "has no turns"),
        (b"[1]", "has not just 'role' and 'content'"),
        (b'[{"role": "user", "content": "a", "name": "b"}]', "has not just"),
        (b'[{"role": "tool", "content": "a"}]', "the role 'tool'"),
        (b'[{"role": "user", "content": [1]}]', "is no text"),
        (b'[{"role": "user", "content": " \\n"}]', "has no word in it"),
        (b'[{"role": "system", "content": "a"}]', "no turn of the user"),
        (b"[" * 100_000, "is not JSON"),
        (b'[{"role": "user", "content": "\\ud800"}]', "half a character"),
    ],
)
def test_what_is_no_conversation(content: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_conversation(np.frombuffer(content, np.uint8))
