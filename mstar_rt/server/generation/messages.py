"""GenerateRequest to what a task takes, events of a request to GenerateResponse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from mstar_rt.errors import InvalidArgument, NotFound, nearest
from mstar_rt.model import ServedModel
from mstar_rt.model.generation import ChatSpec, Reason, SpeechSpec
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.generation.events import End, Sound, Text, chat_events, pcm16, speech_events
from mstar_rt.server.generation.requests import chat_input, generation_of, speech_input
from mstar_rt.server.inputs import TaskInput, add_model_options
from mstar_rt.server.request_stream import RequestStream

ROLES = {
    wire.Turn.ROLE_SYSTEM: "system",
    wire.Turn.ROLE_USER: "user",
    wire.Turn.ROLE_ASSISTANT: "assistant",
}
ENCODINGS = {
    wire.Audio.ENCODING_UNSPECIFIED: wire.Audio.ENCODING_PCM16,
    wire.Audio.ENCODING_PCM16: wire.Audio.ENCODING_PCM16,
    wire.Audio.ENCODING_FLOAT32: wire.Audio.ENCODING_FLOAT32,
}
REASONS = {
    Reason.END: wire.GenerateDone.REASON_END,
    Reason.STOP: wire.GenerateDone.REASON_STOP,
    Reason.MAX_TOKENS: wire.GenerateDone.REASON_MAX_TOKENS,
    Reason.DEADLINE: wire.GenerateDone.REASON_DEADLINE,
}
OF_THE_SERVER = ("encoding", "playback_buffer_s")
"""Fields of SpeechOptions that the model never sees."""


@dataclass(frozen=True)
class Asked:
    """A request that was read."""

    given: TaskInput
    spec: ChatSpec | SpeechSpec
    encoding: wire.Audio.Encoding = wire.Audio.ENCODING_PCM16


def read_request(model: ServedModel, request: wire.GenerateRequest) -> Asked:
    """Raises:  NotFound: the model has no such task.
    InvalidArgument: it generates nothing, or the request does not fit its task. What options may be is checked when
                     the request starts.
    """
    spec = _spec(model, request)
    _refuse_fields(request.image, spec.task, "images")
    options = _set_fields(request.text)
    if "stop" in options:
        options["stop"] = list(request.text.stop)
    if request.HasField("seed"):
        options["seed"] = request.seed
    if isinstance(spec, ChatSpec):
        _refuse_fields(request.speech, spec.task, "speech")
        add_model_options(options, request.model_options)
        return Asked(chat_input(model, [_message(turn, i) for i, turn in enumerate(request.turns)], options), spec)
    speech = request.speech
    options |= {name: value for name, value in _set_fields(speech).items() if name not in OF_THE_SERVER}
    add_model_options(options, request.model_options)
    encoding = _encoding(speech)
    return Asked(speech_input(model, _spoken(request), options, speech.playback_buffer_s), spec, encoding)


async def answers(asked: Asked, stream: RequestStream, timer: CallTimer) -> AsyncIterator[wire.GenerateResponse]:
    """To the client, as they are made; `done` at last."""
    events = chat_events(stream) if isinstance(asked.spec, ChatSpec) else speech_events(stream)
    async for event in events:
        answer = wire.GenerateResponse()
        if isinstance(event, End):
            _fill_done(answer.done, event, stream, timer)
        else:
            with timer.encoding():
                _fill(answer, event, asked)
        yield answer


def _spec(model: ServedModel, request: wire.GenerateRequest) -> ChatSpec | SpeechSpec:
    generation = generation_of(model)
    known = {spec.task: spec for spec in (generation.chat, generation.speech) if spec is not None}
    if not request.HasField("task"):
        if len(known) > 1:
            raise InvalidArgument(f"model {model.name!r} generates by several tasks, give one of {', '.join(known)}")
        return next(iter(known.values()))
    if request.task not in known:
        raise NotFound(
            f"model {model.name!r} generates nothing by task {request.task!r}, {nearest(request.task, known)}"
        )
    return known[request.task]


def _set_fields(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


def _refuse_fields(message: Message, task: str, of: str) -> None:
    if fields := _set_fields(message):
        raise InvalidArgument(
            f"task {task!r} takes no options of {of}, but {', '.join(fields)} is given: leave it unset"
        )


def _message(turn: wire.Turn, index: int) -> tuple[str, str]:
    """(role, content). Parts of one turn belong together."""
    where = f"turn {index}"
    if turn.role not in ROLES:
        raise InvalidArgument(f"{where} has the role {turn.role}, expected one of {', '.join(ROLES.values())}")
    for part in turn.parts:
        kind = part.WhichOneof("content")
        if kind != "text":
            has = "an empty part" if kind is None else f"a part of {kind}"
            raise InvalidArgument(f"{where} has {has}, but this task takes text only")
    return ROLES[turn.role], "".join(part.text for part in turn.parts)


def _spoken(request: wire.GenerateRequest) -> str:
    messages = [_message(turn, i) for i, turn in enumerate(request.turns)]
    if [role for role, _ in messages] != ["user"]:
        raise InvalidArgument(f"speech is made of one turn of the user, the request has {len(messages)} turns")
    return messages[0][1]


def _encoding(speech: wire.SpeechOptions) -> wire.Audio.Encoding:
    if speech.encoding not in ENCODINGS:
        raise InvalidArgument(
            "speech is sent as it is made, as ENCODING_PCM16 or ENCODING_FLOAT32: ask for one of these, and put a WAV "
            "header before the samples where you need one"
        )
    return ENCODINGS[speech.encoding]


def _fill(answer: wire.GenerateResponse, event: Text | Sound, asked: Asked) -> None:
    if isinstance(event, Text):
        answer.text.text, answer.text.num_tokens = event.text, event.num_tokens
        return
    assert isinstance(asked.spec, SpeechSpec), "sound comes from speech"
    audio = answer.audio.audio
    is_pcm16 = asked.encoding == wire.Audio.ENCODING_PCM16
    audio.encoding, audio.sample_rate_hz, audio.num_channels = asked.encoding, asked.spec.sample_rate_hz, 1
    audio.data = pcm16(event.samples) if is_pcm16 else event.samples.tobytes()
    answer.audio.first_sample = event.first_sample


def _fill_done(done: wire.GenerateDone, end: End, stream: RequestStream, timer: CallTimer) -> None:
    assert stream.finished is not None, "a stream that ended without an error is finished"
    done.request_id = stream.request_id
    done.reason = REASONS[end.reason]
    done.num_input_tokens, done.num_output_tokens = end.num_input_tokens, end.num_output_tokens
    done.num_samples = end.num_samples
    done.flags.extend(stream.finished.flags)
    done.timing.CopyFrom(timer.timing(stream))
