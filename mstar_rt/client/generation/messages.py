"""Arguments of `chat`, `speak`, `draw` and `edit_image` to wire messages, and the wire's answers to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mstar_rt.client import answers, arguments, messages
from mstar_rt.client.generation import results
from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable, nearest
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor

Turn = Mapping[str, str]
Conversation = str | Sequence[Turn]
"""What the user says, or turns {"role": "system" | "user" | "assistant", "content": "..."}, oldest first."""

Picture = np.ndarray | bytes
"""uint8 [H, W, 3] RGB, or a whole JPEG or PNG file."""

Piece = TypeVar("Piece")
Reader = Callable[[wire.GenerateResponse], Piece]

ROLES = {
    "system": wire.Turn.ROLE_SYSTEM,
    "user": wire.Turn.ROLE_USER,
    "assistant": wire.Turn.ROLE_ASSISTANT,
}
ENCODINGS = {"pcm16": wire.Audio.ENCODING_PCM16, "float32": wire.Audio.ENCODING_FLOAT32}
DTYPES = {wire.Audio.ENCODING_PCM16: "<i2", wire.Audio.ENCODING_FLOAT32: "<f4"}


def chat_request(
    model: str,
    conversation: Conversation,
    task: str | None,
    image: Picture | None,
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> wire.GenerateRequest:
    """Raises:  InvalidArgument: no conversation, an image or an option of the wrong kind, an image and no turn of the
    user."""
    turns = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    request = _request(model, task, budget_ms, criticality)
    request.turns.extend(_turn(turn) for turn in turns)
    if image is not None:
        _add_image(request, image)
    _set_options(request, options, (request.text, request.speech))
    return request


def speech_request(
    model: str,
    text: str,
    task: str | None,
    encoding: str,
    playback_buffer_s: float | None,
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> wire.GenerateRequest:
    """Raises:  InvalidArgument: an unknown encoding, an option of the wrong kind."""
    request = _request(model, task, budget_ms, criticality)
    request.turns.append(_turn({"role": "user", "content": text}))
    if encoding not in ENCODINGS:
        raise InvalidArgument(f"encoding is {arguments.shown(encoding)}, expected one of {', '.join(ENCODINGS)}")
    request.speech.encoding = ENCODINGS[encoding]
    if playback_buffer_s is not None:
        request.speech.playback_buffer_s = arguments.finite("playback_buffer_s", playback_buffer_s)
    _set_options(request, options, (request.text, request.speech))
    return request


def image_request(
    model: str,
    prompt: str,
    task: str | None,
    image: Picture | None,
    system: str | None,
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> wire.GenerateRequest:
    """The images come as they are, not as files: a client has nothing that reads these.

    Raises:  InvalidArgument: an image or an option of the wrong kind, an image as an option of `draw`.
    """
    if "image" in options:
        raise InvalidArgument(
            "draw makes images of text alone, but an image is given: call edit_image, which takes one"
        )
    request = _request(model, task, budget_ms, criticality)
    if system is not None:
        request.turns.append(_turn({"role": "system", "content": system}))
    request.turns.append(_turn({"role": "user", "content": prompt}))
    if image is not None:
        _add_image(request, image)
    _set_options(request, options, (request.text, request.image))
    request.image.encoding = tensor_pb2.Image.ENCODING_RAW
    return request


def text_piece(answer: wire.GenerateResponse) -> results.TextPiece:
    """Raises:  InvalidArgument: it is none."""
    _check_kind(answer, "text")
    chunk = answer.text
    return results.TextPiece(chunk.text, chunk.num_tokens, chunk.thought, chunk.image_index)


MADE_BY = {"text": "chat", "audio": "speak", "progress": "draw or edit_image", "image": "draw or edit_image"}
"""What to call for each kind of answer."""


def _check_kind(answer: wire.GenerateResponse, expected: str) -> None:
    kind = answer.WhichOneof("answer")
    if kind != expected:
        made = MADE_BY.get(kind or "", "another method")
        raise InvalidArgument(f"the task gives {kind}, not {expected}: ask for it by {made}, or name another task")


def image_piece(answer: wire.GenerateResponse) -> results.ImagePiece:
    kind = answer.WhichOneof("answer")
    if kind == "text":
        return text_piece(answer)
    if kind == "image":
        made = answer.image
        return results.ImageResult(_pixels(made.image), made.seed, made.image_index)
    progress = answer.progress
    return results.ImageProgress(
        progress.step,
        progress.num_steps,
        progress.image_index,
        _pixels(progress.preview) if progress.HasField("preview") else None,
        array_from_tensor(progress.latents, "latents") if progress.HasField("latents") else None,
    )


class SpeechReader:
    """Pieces of sound, each of which follows the one before."""

    def __init__(self) -> None:
        self._num_samples = 0

    def __call__(self, answer: wire.GenerateResponse) -> results.AudioPiece:
        """Raises:  Unavailable: it does not follow.  InvalidArgument: it is no sound."""
        _check_kind(answer, "audio")
        chunk = answer.audio
        if chunk.first_sample != self._num_samples:
            raise Unavailable(
                f"after {self._num_samples} samples came number {chunk.first_sample}: a piece of the sound was lost"
            )
        audio = chunk.audio
        samples = np.frombuffer(audio.data, DTYPES[audio.encoding])
        if audio.encoding == wire.Audio.ENCODING_PCM16:
            samples = samples.astype(np.float32) / results.PCM16_PEAK
        self._num_samples += len(samples)
        return results.AudioPiece(samples, chunk.first_sample, audio.sample_rate_hz)


def generation_done(done: wire.GenerateDone) -> results.GenerationDone:
    return results.GenerationDone(
        reason=wire.GenerateDone.Reason.Name(done.reason).removeprefix("REASON_").lower(),
        num_input_tokens=done.num_input_tokens,
        num_output_tokens=done.num_output_tokens,
        num_samples=done.num_samples,
        timing=answers.timing(done.timing),
        request_id=done.request_id,
        flags=tuple(done.flags),
    )


def whole_speech(pieces: Sequence[results.AudioPiece], done: results.GenerationDone | None) -> results.Speech:
    """Raises:  Unavailable: it has no end.  FailedPrecondition: the model made no sound of it."""
    if done is None:
        raise Unavailable("the server ended the call before the end of the speech: send the request again")
    if not pieces:
        raise FailedPrecondition(f"the model made no sound, and ended with {done.reason!r}: say more, or allow more")
    return results.Speech(np.concatenate([piece.samples for piece in pieces]), pieces[0].sample_rate_hz, done)


def all_images(pieces: Sequence[results.ImagePiece], done: results.GenerationDone | None) -> list[results.ImageResult]:
    """Raises:  Unavailable: some are missing."""
    if done is None:
        raise Unavailable("the server ended the call before the end of the images: send the request again")
    images = [piece for piece in pieces if isinstance(piece, results.ImageResult)]
    return sorted(images, key=lambda image: image.index)


def _request(model: str, task: str | None, budget_ms: float | None, criticality: str | None) -> wire.GenerateRequest:
    return wire.GenerateRequest(
        model=arguments.text("model", model),
        task=None if task is None else arguments.text("task", task),
        options=messages.request_options(budget_ms, criticality),
    )


def _turn(turn: Turn) -> wire.Turn:
    if not isinstance(turn, Mapping) or turn.keys() != {"role", "content"}:
        raise InvalidArgument(f"a turn is {arguments.shown(turn)}, expected a mapping with 'role' and 'content'")
    role = turn["role"]
    if role not in ROLES:
        raise InvalidArgument(f"a turn has the role {arguments.shown(role)}, {nearest(str(role), ROLES)}")
    part = wire.Part(text=arguments.text("the content of a turn", turn["content"]))
    return wire.Turn(role=ROLES[role], parts=[part])


def _add_image(request: wire.GenerateRequest, picture: Picture) -> None:
    """To the first turn of the user."""
    first = next((turn for turn in request.turns if turn.role == wire.Turn.ROLE_USER), None)
    if first is None:
        raise InvalidArgument("an image is given, but the conversation has no turn of the user to put it into")
    image = first.parts.add().image
    if isinstance(picture, bytes):
        image.CopyFrom(messages.compressed(picture, "an image"))
    elif isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        image.encoding = tensor_pb2.Image.ENCODING_RAW
        image.height, image.width, image.channels = picture.shape
        image.data = picture.tobytes()
    else:
        is_array = isinstance(picture, np.ndarray)
        shown = f"{picture.dtype} {list(picture.shape)}" if is_array else f"a {type(picture).__name__}"
        raise InvalidArgument(f"the image is {shown}, expected uint8 [H, W, 3], or a JPEG or PNG file as bytes")


def _pixels(image: tensor_pb2.Image) -> np.ndarray:
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, image.channels)


def _set_options(request: wire.GenerateRequest, options: Mapping[str, Any], known: Sequence[Message]) -> None:
    """Those that the messages `known` have go there, any others to the model, which refuses what it does not know."""
    for name, value in options.items():
        if value is None:
            raise InvalidArgument(f"option {name!r} is None, leave it out to get the default")
        try:
            _set_option(request, name, value, known)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise InvalidArgument(f"option {name!r} cannot be {arguments.shown(value)}: {error}") from error


def _set_option(request: wire.GenerateRequest, name: str, value: Any, known: Sequence[Message]) -> None:
    if name == "seed":
        request.seed = messages.whole(request.DESCRIPTOR.fields_by_name[name], value)
        return
    if name == "stop":
        request.text.stop.extend([value] if isinstance(value, str) else value)
        return
    for message in known:
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and name != "encoding":  # which is not for options to say
            setattr(message, name, _scalar(field, value))
            return
    request.model_options[name].CopyFrom(messages.option_value(name, value))


def _scalar(field: Any, value: Any) -> Any:
    if field.cpp_type in messages.WHOLE:
        return messages.whole(field, value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return arguments.number(value)
    if field.enum_type is not None:
        return messages.enum_number(field.enum_type, value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, bool):
        raise TypeError("True or False is expected")
    return value
