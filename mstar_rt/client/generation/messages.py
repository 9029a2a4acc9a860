"""Arguments of `chat` and `speak` to wire messages, and the wire's answers to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from mstar_rt.client import answers, arguments, messages
from mstar_rt.client.generation import results
from mstar_rt.errors import FailedPrecondition, InvalidArgument, Unavailable, nearest
from mstar_rt.protos import generation_pb2 as wire

Turn = Mapping[str, str]
Conversation = str | Sequence[Turn]
"""What the user says, or turns {"role": "system" | "user" | "assistant", "content": "..."}, oldest first."""

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
    budget_ms: float | None,
    criticality: str | None,
    options: Mapping[str, Any],
) -> wire.GenerateRequest:
    """Raises:  InvalidArgument: no conversation, an option of the wrong kind."""
    turns = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    request = _request(model, task, budget_ms, criticality)
    request.turns.extend(_turn(turn) for turn in turns)
    _set_options(request, options)
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
        raise InvalidArgument(f"encoding is {encoding!r}, expected one of {', '.join(ENCODINGS)}")
    request.speech.encoding = ENCODINGS[encoding]
    if playback_buffer_s is not None:
        request.speech.playback_buffer_s = arguments.finite("playback_buffer_s", playback_buffer_s)
    _set_options(request, options)
    return request


def text_piece(chunk: wire.TextChunk) -> results.TextPiece:
    return results.TextPiece(chunk.text, chunk.num_tokens, chunk.thought)


def audio_piece(chunk: wire.AudioChunk, num_before: int) -> results.AudioPiece:
    """`num_before` samples came before it.

    Raises:  Unavailable: it does not follow them.
    """
    if chunk.first_sample != num_before:
        raise Unavailable(f"after {num_before} samples came number {chunk.first_sample}: a piece of the sound was lost")
    audio = chunk.audio
    samples = np.frombuffer(audio.data, DTYPES[audio.encoding])
    if audio.encoding == wire.Audio.ENCODING_PCM16:
        samples = samples.astype(np.float32) / results.PCM16_PEAK
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


def _request(model: str, task: str | None, budget_ms: float | None, criticality: str | None) -> wire.GenerateRequest:
    return wire.GenerateRequest(
        model=arguments.text("model", model),
        task=None if task is None else arguments.text("task", task),
        options=messages.request_options(budget_ms, criticality),
    )


def _turn(turn: Turn) -> wire.Turn:
    if not isinstance(turn, Mapping) or turn.keys() != {"role", "content"}:
        raise InvalidArgument(f"a turn is {turn!r}, expected a mapping with 'role' and 'content'")
    role = turn["role"]
    if role not in ROLES:
        raise InvalidArgument(f"a turn has the role {role!r}, {nearest(str(role), ROLES)}")
    part = wire.Part(text=arguments.text("the content of a turn", turn["content"]))
    return wire.Turn(role=ROLES[role], parts=[part])


def _set_options(request: wire.GenerateRequest, options: Mapping[str, Any]) -> None:
    """Those that the wire knows go there, any others to the model, which refuses what it does not know."""
    for name, value in options.items():
        if value is None:
            raise InvalidArgument(f"option {name!r} is None, leave it out to get the default")
        try:
            _set_option(request, name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"option {name!r} cannot be {value!r}: {error}") from error


def _set_option(request: wire.GenerateRequest, name: str, value: Any) -> None:
    if name == "seed":
        request.seed = arguments.whole_from_0("seed", value)
        return
    if name == "stop":
        request.text.stop.extend([value] if isinstance(value, str) else value)
        return
    for message in (request.text, request.speech):
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None:
            setattr(message, name, _scalar(field, value))
            return
    request.model_options[name].CopyFrom(messages.option_value(name, value))


def _scalar(field: Any, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32:
        return arguments.whole(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return arguments.number(value)
    return value
