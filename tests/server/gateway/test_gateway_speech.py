"""POST /v1/audio/speech, as OpenAI's client meets it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import APIConnectionError, BadRequestError, InternalServerError, OpenAI

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import BROKEN, client_of, fails, replaced, served
from toy_generators import CHUNK_SAMPLES, NAME, SAMPLE_RATE_HZ, end, sample_of, speak, talker
from toy_runtime import Job, ToyRuntime

from mstar_rt.message import Submit
from mstar_rt.model import Reason
from mstar_rt.server.gateway.wav import NUM_HEADER_BYTES

TEXT = "a robot speaks"
SAMPLES = np.repeat(np.rint(np.array([sample_of(word) for word in TEXT.split()], np.float32) * 32767), CHUNK_SAMPLES)
PCM = SAMPLES.astype("<i2").tobytes()


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(runtime: ToyRuntime) -> Iterator[OpenAI]:
    with client_of(runtime) as opened:
        yield opened


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "voice": "default", "input": TEXT, **fields}


def say(client: OpenAI, **fields: Any) -> Any:
    return client.audio.speech.create(**asked(**fields))


def streamed(client: OpenAI, **fields: Any) -> tuple[str, bytes]:
    with client.audio.speech.with_streaming_response.create(**asked(**fields)) as answer:
        return answer.headers["content-type"], answer.read()


def events(client: OpenAI, **fields: Any) -> list[dict[str, Any]]:
    content_type, body = streamed(client, stream_format="sse", **fields)
    assert content_type.startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


# ---- answers


@pytest.mark.parametrize("fields", [{}, {"response_format": "wav"}])
def test_a_whole_wav_file_has_a_right_header(client: OpenAI, fields: dict[str, Any]) -> None:
    answer = say(client, **fields)
    assert answer.response.headers["content-type"] == "audio/wav"
    assert int(answer.response.headers["content-length"]) == len(answer.content)
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, SAMPLE_RATE_HZ)
        assert file.getnframes() == len(SAMPLES)
        assert file.readframes(len(SAMPLES)) == PCM
    assert struct.unpack_from("<I", answer.content, 4)[0] == len(answer.content) - 8


def test_a_streamed_wav_file_has_one_header_of_unknown_length(client: OpenAI) -> None:
    content_type, body = streamed(client, response_format="wav", stream_format="audio")
    assert content_type == "audio/wav"
    assert body.count(b"RIFF") == 1
    assert (body[4:8], body[40:44], body[36:40]) == (b"\xff" * 4, b"\xff" * 4, b"data")
    assert body[NUM_HEADER_BYTES:] == PCM
    with wave.open(io.BytesIO(body)) as file:  # players read it to its end
        assert file.readframes(len(SAMPLES) + 1) == PCM


@pytest.mark.parametrize("fields", [{}, {"stream_format": "audio"}])
def test_pcm_says_its_rate_in_the_header(client: OpenAI, fields: dict[str, Any]) -> None:
    content_type, body = streamed(client, response_format="pcm", **fields)
    assert (content_type, body) == (f"audio/pcm; rate={SAMPLE_RATE_HZ}; channels=1", PCM)
    assert say(client, response_format="pcm", **fields).content == PCM


@pytest.mark.parametrize(("response_format", "num_header_bytes"), [("pcm", 0), ("wav", NUM_HEADER_BYTES)])
def test_events_carry_the_same_bytes(client: OpenAI, response_format: str, num_header_bytes: int) -> None:
    *deltas, done = events(client, response_format=response_format)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert len(deltas) == len(TEXT.split())
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas)[num_header_bytes:] == PCM
    usage = {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6}
    assert done == {"type": "speech.audio.done", "usage": usage, "reason": "end"}


def test_why_it_ended_is_said(runtime: ToyRuntime, client: OpenAI) -> None:
    async def out_of_time(job: Job) -> None:
        speak(job, "a", 0)
        end(job, Reason.DEADLINE, ("deadline", "unspoken"))

    with replaced(runtime, "speech", out_of_time):
        headers = say(client).response.headers
        assert (headers["x-mstar-reason"], headers["x-mstar-flags"]) == ("deadline", "deadline, unspoken")
        done = events(client)[-1]
        assert (done["reason"], done["flags"]) == ("deadline", ["deadline", "unspoken"])
    headers = say(client).response.headers
    assert (headers["x-mstar-reason"], headers.get("x-mstar-flags")) == ("end", None)


def test_the_first_sound_arrives_while_the_rest_is_made(runtime: ToyRuntime, client: OpenAI) -> None:
    goes_on = asyncio.Event()

    async def wait(job: Job) -> None:
        speak(job, "a", 0)
        await goes_on.wait()
        speak(job, "robot", 1)
        end(job, Reason.END)

    async def go_on() -> None:
        goes_on.set()

    fields = asked(response_format="pcm")
    with replaced(runtime, "speech", wait), client.audio.speech.with_streaming_response.create(**fields) as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        assert len(first) == 2 * CHUNK_SAMPLES
        runtime.run(go_on())
        assert first + b"".join(pieces) == PCM[: 4 * CHUNK_SAMPLES]


# ---- requests


def test_options_reach_the_model(runtime: ToyRuntime, client: OpenAI) -> None:
    say(client, voice="bob", speed=1.5, extra_body={"seed": 4})
    assert runtime.seen(Submit)[-1].params == {"voice": "bob", "speed": 1.5, "seed": 4}
    say(client, voice={"id": "bob"}, instructions="")
    assert runtime.seen(Submit)[-1].params["voice"] == "bob"
    say(client)
    assert runtime.seen(Submit)[-1].params["voice"] == "amy"


def test_only_what_is_streamed_is_played_while_it_is_made(runtime: ToyRuntime, client: OpenAI) -> None:
    say(client, response_format="pcm", extra_body={"playback_buffer_s": 0.5})
    assert runtime.seen(Submit)[-1].playback.buffer_s == 0.5
    events(client)
    assert runtime.seen(Submit)[-1].playback.buffer_s == 0.0
    say(client)
    assert runtime.seen(Submit)[-1].playback is None


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": "mp3"}, "response_format", "is mp3, which this server does not make: ask for wav or pcm"),
        ({"response_format": "opus"}, "response_format", "does not make"),
        ({"response_format": "ogg"}, "response_format", 'is "ogg", expected one of wav, pcm'),
        ({"stream_format": "chunks"}, "stream_format", "expected one of audio, sse"),
        ({"voice": "alloy"}, "voice", "option 'voice' is 'alloy', expected one of amy, bob"),
        ({"voice": {"name": "bob"}}, "voice.id", "is missing"),
        ({"voice": {"id": "bob", "pitch": 1}}, "voice.pitch", "not known here"),
        ({"voice": 5}, "voice", "is no text"),
        ({"speed": 9}, "speed", "option 'speed' is 9.0, expected 0.5 to 2.0"),
        ({"instructions": "whisper"}, "instructions", "does not serve: leave it out"),
        ({"extra_body": {"stream": True}}, "stream", "does not serve"),
        ({"extra_body": {"temperature": 1}}, "temperature", "no option of model 'talker'"),
        ({"extra_body": {"sped": 1}}, "sped", "did you mean 'speed'?"),
        ({"extra_body": {"playback_buffer_s": 1}}, "playback_buffer_s", "whole file, which is not played while it is"),
        (
            {"response_format": "pcm", "extra_body": {"playback_buffer_s": -1}},
            "playback_buffer_s",
            "playback_buffer_s is -1",
        ),
        ({"input": ""}, "input", "the input to speak is empty, expected at least a word"),
        ({"input": "a" * 5000}, "input", "the limit of this model is 4096"),
        ({"input": None}, "input", "is missing, expected text"),
    ],
)
def test_what_is_wrong_or_not_served_is_refused_by_name(
    runtime: ToyRuntime, client: OpenAI, fields: dict[str, Any], param: str | None, message: str
) -> None:
    num_before = len(runtime.seen(Submit))
    with pytest.raises(BadRequestError) as error:
        say(client, **fields)
    assert message in error.value.message
    assert (error.value.param, error.value.type) == (param, "invalid_request_error")
    assert len(runtime.seen(Submit)) == num_before


def test_a_model_that_only_writes(client: OpenAI) -> None:
    refused = pytest.raises(BadRequestError, match="does not speak, it chats")
    with served(talker(speaks=False)) as writer, client_of(writer) as asking, refused:
        say(asking)


# ---- failures


@pytest.mark.parametrize("fields", [{"response_format": "pcm"}, {}, {"stream_format": "sse"}])
def test_a_request_that_fails_at_once_is_answered_by_its_error(
    runtime: ToyRuntime, client: OpenAI, fields: dict[str, Any]
) -> None:
    with replaced(runtime, "speech", fails(speak, 0)), pytest.raises(InternalServerError) as error:
        say(client, **fields)
    assert (error.value.status_code, error.value.code) == (503, "unavailable")
    assert error.value.message.endswith(f" - {BROKEN}")
    assert error.value.response.headers["x-should-retry"] == "true"


def test_audio_that_is_not_whole_does_not_look_whole(runtime: ToyRuntime, client: OpenAI) -> None:
    with replaced(runtime, "speech", fails(speak, 1)):
        with pytest.raises(Exception, match="incomplete chunked read"):
            streamed(client, response_format="pcm")
        with pytest.raises(APIConnectionError):
            say(client, response_format="pcm")
        first, last = events(client)
    assert first["type"] == "speech.audio.delta"
    assert (last["type"], last["error"]["message"], last["error"]["code"]) == ("error", BROKEN, "unavailable")
