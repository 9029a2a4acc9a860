"""POST /v1/audio/speech."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from mstar_rt.model import ServedModel
from mstar_rt.model.generation import Reason
from mstar_rt.server.gateway import wav
from mstar_rt.server.gateway.call import Call
from mstar_rt.server.gateway.fields import MAX_SHOWN, Fields
from mstar_rt.server.gateway.options import BUDGET, SAMPLING, Given, Names, as_fields, checked, named, take_sampling
from mstar_rt.server.generation.events import End, Sound, pcm16, speech_events
from mstar_rt.server.generation.requests import speech_input, speech_spec
from mstar_rt.server.request_stream import RequestStream

FORMATS = ("wav", "pcm")
OTHER_FORMATS = ("mp3", "opus", "aac", "flac")
STREAM_FORMATS = ("audio", "sse")
STREAMED = "ask for pcm, or give stream_format"
DEFAULT_VOICE = "default"
"""The model's own: OpenAI's client has to name a voice."""
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {"instructions": ("",), "stream": ()}
REASON_HEADER, FLAGS_HEADER = "x-mstar-reason", "x-mstar-flags"
PLAYBACK = "playback_buffer_s"
KNOWN = ("model", "input", "voice", "response_format", "stream_format", "speed", PLAYBACK, BUDGET, *SAMPLING)
NAMES: Names = named({**{name: name for name in ("voice", "speed", PLAYBACK, BUDGET, *SAMPLING)}, "text": "input"})


@dataclass(frozen=True)
class Asked:
    """`stream_format` None: as a whole, but for pcm. `playback_buffer_s`: what the player gathers before it starts."""

    model: str
    text: str
    options: Given
    response_format: str
    stream_format: str | None
    budget_ms: float | None
    playback_buffer_s: float

    @property
    def is_whole(self) -> bool:
        """A WAV file says in its head how long it is."""
        return self.response_format == "wav" and self.stream_format is None


async def serve_speech(call: Call, fields: Fields) -> None:
    with as_fields(NAMES):
        with call.timer.decoding():
            asked = read_speech(fields)
            model = call.model(asked.model)
            options = checked(model, speech_spec(model).task, asked.options)
            given = speech_input(model, asked.text, options, asked.playback_buffer_s)
            if asked.is_whole:
                given.playback = None  # nobody listens while it is made
            stream = call.start(model, given, asked.budget_ms)
        async with stream:
            events = speech_events(stream)
            if asked.is_whole:
                await _whole(call, model, stream, events)
            elif asked.stream_format == "sse":
                await _as_events(call, model, asked, stream, events)
            else:
                await _in_pieces(call, model, asked, stream, events)


# ---- the request


def read_speech(fields: Fields) -> Asked:
    """Raises:  FieldError."""
    model, text = fields.required_text("model"), fields.required_text("input")
    options = take_sampling(fields)
    voice = _voice(fields)
    if voice != DEFAULT_VOICE:
        options["voice"] = "voice", voice
    speed = fields.number("speed")
    if speed is not None:
        options["speed"] = "speed", speed
    stream_format, buffer_s = fields.choice("stream_format", STREAM_FORMATS), fields.number(PLAYBACK)
    asked = Asked(model, text, options, _format(fields), stream_format, fields.number(BUDGET), buffer_s or 0.0)
    if asked.is_whole and buffer_s is not None:
        raise fields.error(PLAYBACK, f"is given for a whole file, which is not played while it is made: {STREAMED}")
    fields.without_effect(WITHOUT_EFFECT)
    fields.refuse_rest(KNOWN)
    return asked


def _voice(fields: Fields) -> str:
    """A name, or an object with it as `id`."""
    given = fields.any("voice")
    if isinstance(given, dict):
        voice = Fields(given, "voice")
        given = voice.required_text("id")
        voice.refuse_rest(("id",))
    if not isinstance(given, str | None):
        raise fields.error("voice", f"is no text, expected a name, or {DEFAULT_VOICE!r}")
    return DEFAULT_VOICE if given is None else given


def _format(fields: Fields) -> str:
    name = "response_format"
    given = fields.text(name) or FORMATS[0]
    if given in OTHER_FORMATS:
        raise fields.error(name, f"is {given}, which this server does not make: ask for wav or pcm")
    if given not in FORMATS:
        raise fields.error(name, f"is {json.dumps(given[:MAX_SHOWN])}, expected one of {', '.join(FORMATS)}")
    return given


# ---- the answer


async def _whole(call: Call, model: ServedModel, stream: RequestStream, events: AsyncIterator[Sound | End]) -> None:
    samples, end = bytearray(), End(Reason.END)
    async for event in events:
        if isinstance(event, Sound):
            samples += pcm16(event.samples)
        else:
            end = event
    with call.timer.encoding():
        file = wav.wav_header(speech_spec(model).sample_rate_hz, len(samples)) + samples
    call.timer.timing(stream)
    headers = {REASON_HEADER: _reason(end)}
    if flags := _flags(stream):
        headers[FLAGS_HEADER] = ", ".join(flags)
    await call.answer_bytes(file, wav.CONTENT_TYPE, headers=headers)


async def _in_pieces(
    call: Call, model: ServedModel, asked: Asked, stream: RequestStream, events: AsyncIterator[Sound | End]
) -> None:
    """The answer begins with the first samples: a request that fails before is answered by its error."""
    head, has_begun = _head(model, asked), False
    async for event in events:
        if not has_begun:
            await call.begin(_content_type(model, asked))
            await call.write(head)
            has_begun = True
        if isinstance(event, Sound):
            await call.write(pcm16(event.samples))
    call.timer.timing(stream)
    await call.end()


async def _as_events(
    call: Call, model: ServedModel, asked: Asked, stream: RequestStream, events: AsyncIterator[Sound | End]
) -> None:
    """The audio of all deltas, one after the other, is what `_in_pieces` answers."""
    head, end, has_begun = _head(model, asked), End(Reason.END), False
    async for event in events:
        if not has_begun:
            await call.begin_events()
            has_begun = True
        if isinstance(event, Sound):
            audio = base64.b64encode(head + pcm16(event.samples)).decode()
            await call.event({"type": "speech.audio.delta", "audio": audio})
            head = b""
        else:
            end = event
    call.timer.timing(stream)
    done = {"type": "speech.audio.done", "usage": _usage(end), "reason": _reason(end)}
    if flags := _flags(stream):
        done["flags"] = flags
    await call.event(done)
    await call.end()


def _head(model: ServedModel, asked: Asked) -> bytes:
    return wav.wav_header(speech_spec(model).sample_rate_hz) if asked.response_format == "wav" else b""


def _content_type(model: ServedModel, asked: Asked) -> str:
    """Raw samples do not say what they are."""
    if asked.response_format == "wav":
        return wav.CONTENT_TYPE
    return f"audio/pcm; rate={speech_spec(model).sample_rate_hz}; channels=1"


def _reason(end: End) -> str:
    """Why it ended: sound does not show that more was to be said."""
    return end.reason.name.lower()


def _flags(stream: RequestStream) -> list[str]:
    """Of a request that has ended, e.g. that sentences were left out."""
    return [] if stream.finished is None else list(stream.finished.flags)


def _usage(end: End) -> dict[str, int]:
    total = end.num_input_tokens + end.num_output_tokens
    return {"input_tokens": end.num_input_tokens, "output_tokens": end.num_output_tokens, "total_tokens": total}
