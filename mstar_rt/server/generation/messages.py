"""GenerateRequest to what a task takes, events of a request to GenerateResponse; for images see `image_messages`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.model.generation import Reason
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.server.call_timer import CallTimer
from mstar_rt.server.generation.asked_task import asked_task
from mstar_rt.server.generation.events import End, Sound, Text, chat_events, pcm16, speech_events
from mstar_rt.server.generation.image_messages import AskedImages, image_answers, read_images
from mstar_rt.server.generation.requests import Messages, chat_input, generation_of, speech_input, speech_spec
from mstar_rt.server.generation.turns import read_turns
from mstar_rt.server.images import decode_one
from mstar_rt.server.inputs import TaskInput, add_model_options
from mstar_rt.server.request_stream import RequestStream

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
class AskedText:
    given: TaskInput

    @property
    def inputs(self) -> list[TaskInput]:
        return [self.given]


@dataclass(frozen=True)
class AskedSpeech:
    given: TaskInput
    sample_rate_hz: int
    encoding: wire.Audio.Encoding

    @property
    def inputs(self) -> list[TaskInput]:
        return [self.given]


Asked = AskedText | AskedSpeech | AskedImages
"""A request that was read; `inputs` are those of the requests that it takes."""


async def read_request(model: ServedModel, request: wire.GenerateRequest) -> Asked:
    """Raises:  NotFound: the model has no such task.
    InvalidArgument: it generates nothing, or the request does not fit its task. What options may be is checked when
                     the request starts.
    """
    generation = generation_of(model)
    messages, sent = read_turns(request.turns)
    task = asked_task(model, request, sent is not None)
    options = _set_fields(request.text)
    if "stop" in options:
        options["stop"] = list(request.text.stop)
    if request.HasField("seed"):
        options["seed"] = request.seed
    speaks = generation.speech is not None and task == generation.speech.task
    draws = generation.images is not None and task in generation.images.tasks
    if not speaks:
        _refuse_fields(request.speech, task, "speech", [] if generation.speech is None else [generation.speech.task])
    if not draws:
        _refuse_fields(request.image, task, "images", [] if generation.images is None else generation.images.tasks)
    if speaks:
        if sent is not None:
            raise InvalidArgument(f"task {task!r} speaks a text, but the turn has an image: leave it out")
        return _read_speech(model, request, messages, options)
    image = None if sent is None else await decode_one(sent, "image")
    if draws:
        return read_images(model, task, request, messages, image, options)
    add_model_options(options, request.model_options)
    return AskedText(chat_input(model, messages, options, image))


async def answers(
    asked: Asked, streams: Sequence[RequestStream], timer: CallTimer
) -> AsyncGenerator[wire.GenerateResponse, None]:
    """To the client, as they are made; `done` at last. `streams` are of the inputs of what was asked."""
    end = End(Reason.END)
    if isinstance(asked, AskedImages):
        async with aclosing(image_answers(asked, streams, timer)) as made:
            async for each in made:
                if isinstance(each, End):
                    end = each
                else:
                    yield each
    else:
        events = chat_events(streams[0]) if isinstance(asked, AskedText) else speech_events(streams[0])
        async for event in events:
            if isinstance(event, End):
                end = event
                continue
            answer = wire.GenerateResponse()
            with timer.encoding():
                _fill(answer, event, asked)
            yield answer
    answer = wire.GenerateResponse()
    _fill_done(answer.done, end, streams, timer)
    yield answer


def _read_speech(
    model: ServedModel, request: wire.GenerateRequest, messages: Messages, options: dict[str, Any]
) -> AskedSpeech:
    if [role for role, _ in messages] != ["user"]:
        raise InvalidArgument(f"speech is made of one turn of the user, the request has {len(messages)} turns")
    speech = request.speech
    options |= {name: value for name, value in _set_fields(speech).items() if name not in OF_THE_SERVER}
    add_model_options(options, request.model_options)
    given = speech_input(model, messages[0][1], options, speech.playback_buffer_s)
    return AskedSpeech(given, speech_spec(model).sample_rate_hz, _encoding(speech))


def _set_fields(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


def _refuse_fields(message: Message, task: str, of: str, made_by: Sequence[str]) -> None:
    """`made_by` are the model's tasks that take them."""
    if fields := _set_fields(message):
        given = ", ".join(name for name in fields if name != "encoding")  # which clients set without being told
        has = f", but {given} is given" if given else ""
        instead = f"ask for {' or '.join(made_by)}" if made_by else "ask another model"
        raise InvalidArgument(f"task {task!r} makes no {of} and takes no options of {of}{has}: {instead}, or give none")


def _encoding(speech: wire.SpeechOptions) -> wire.Audio.Encoding:
    if speech.encoding not in ENCODINGS:
        raise InvalidArgument(
            "speech is sent as it is made, as ENCODING_PCM16 or ENCODING_FLOAT32: ask for one of these, and put a WAV "
            "header before the samples where you need one"
        )
    return ENCODINGS[speech.encoding]


def _fill(answer: wire.GenerateResponse, event: Text | Sound, asked: AskedText | AskedSpeech) -> None:
    if isinstance(event, Text):
        answer.text.text, answer.text.num_tokens = event.text, event.num_tokens
        return
    assert isinstance(asked, AskedSpeech), "sound comes from speech"
    audio = answer.audio.audio
    is_pcm16 = asked.encoding == wire.Audio.ENCODING_PCM16
    audio.encoding, audio.sample_rate_hz, audio.num_channels = asked.encoding, asked.sample_rate_hz, 1
    audio.data = pcm16(event.samples) if is_pcm16 else event.samples.tobytes()
    answer.audio.first_sample = event.first_sample


def _fill_done(done: wire.GenerateDone, end: End, streams: Sequence[RequestStream], timer: CallTimer) -> None:
    """Of several requests the time is that of the last to end."""
    done.request_id = streams[0].request_id
    done.reason = REASONS[end.reason]
    done.num_input_tokens, done.num_output_tokens = end.num_input_tokens, end.num_output_tokens
    done.num_samples = end.num_samples
    for stream in sorted(streams, key=lambda stream: stream.ended_ns):
        assert stream.finished is not None, "a stream that ended without an error is finished"
        done.flags.extend(flag for flag in stream.finished.flags if flag not in done.flags)
        done.timing.CopyFrom(timer.timing(stream))
