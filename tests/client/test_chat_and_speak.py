"""`chat` and `speak`, blocking and asyncio, over real gRPC against the toy edge."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_generators import (
    CHUNK_SAMPLES,
    SAMPLE_RATE_HZ,
    endless,
    sample_of,
    speak,
    talking_runtime,
    write,
)
from toy_runtime import Job, ToyRuntime

from mstar_rt.cli import main
from mstar_rt.client import Client, connect, connect_async
from mstar_rt.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from mstar_rt.message import CancelRequest, Submit

TEXT = "a longer word"
CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes?"},
    {"role": "user", "content": "Grüße"},
]


@pytest.fixture
def talking() -> Iterator[ToyRuntime]:
    with talking_runtime() as running:
        yield running


@pytest.fixture
def talker_client(talking: ToyRuntime) -> Iterator[Client]:
    with connect(talking.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone() -> Iterator[Client]:
    """A client of no server, for what it refuses itself."""
    with connect("127.0.0.1:9") as unconnected:
        yield unconnected


def samples_of(text: str) -> np.ndarray:
    return np.concatenate([np.full(CHUNK_SAMPLES, sample_of(word), np.float32) for word in text.split()])


def test_chat(talker_client: Client, talking: ToyRuntime) -> None:
    stream = talker_client.chat("talker", "hi", seed=7, max_tokens=20, temperature=0, criticality="planning")
    assert stream.text() == "1 turns, seed 7: hi"
    with pytest.raises(FailedPrecondition, match=r"a stream is read once, .* or call again"):
        stream.text()
    done = stream.done
    assert done is not None
    assert (done.reason, done.num_input_tokens, done.num_output_tokens) == ("end", 2, 19)
    assert done.timing.total_us > 0
    (submit,) = talking.seen(Submit)
    assert (submit.request_id, submit.criticality) == (done.request_id, "planning")
    assert submit.params == {"seed": 7, "max_tokens": 20, "temperature": 0.0, "top_p": 1.0}


def test_a_conversation_and_stop_strings(talker_client: Client) -> None:
    for stop in ("seed", ["nowhere", "seed"]):
        stream = talker_client.chat("talker", CONVERSATION, stop=stop)
        assert stream.text() == "4 turns, "
        assert stream.done is not None
        assert stream.done.reason == "stop"


@pytest.mark.parametrize(("encoding", "tolerance"), [("float32", 0.0), ("pcm16", 0.5 / 32767)])
def test_speak(talker_client: Client, tmp_path: Path, encoding: str, tolerance: float) -> None:
    stream = talker_client.speak("talker", TEXT, voice="bob", speed=1.5, encoding=encoding, playback_buffer_s=0.2)
    pieces = list(stream)
    assert [piece.first_sample for piece in pieces] == [0, CHUNK_SAMPLES, 2 * CHUNK_SAMPLES]
    with pytest.raises(FailedPrecondition, match="read once"):
        stream.collect()
    assert stream.done is not None
    assert stream.done.num_samples == 3 * CHUNK_SAMPLES
    speech = talker_client.speak("talker", TEXT, encoding=encoding).collect()
    np.testing.assert_array_equal(speech.samples, np.concatenate([piece.samples for piece in pieces]))
    np.testing.assert_allclose(speech.samples, samples_of(TEXT), rtol=0, atol=tolerance + 1e-9)
    assert speech.samples.dtype == np.float32
    assert speech.duration_s == pytest.approx(0.3)
    speech.save_wav(tmp_path / "said.wav")
    with wave.open(str(tmp_path / "said.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (SAMPLE_RATE_HZ, 1, 3 * CHUNK_SAMPLES)
        assert file.readframes(CHUNK_SAMPLES) == pieces[0].pcm16()


def test_the_same_with_asyncio(talking: ToyRuntime) -> None:
    async def both() -> None:
        async with connect_async(talking.address) as client:
            chat, speech = client.chat("talker", CONVERSATION, seed=1), client.speak("talker", TEXT, encoding="float32")
            text, spoken = await asyncio.gather(chat.text(), speech.collect())
            assert text == "4 turns, seed 1: Grüße"
            assert chat.done is not None
            assert chat.done.reason == "end"
            np.testing.assert_array_equal(spoken.samples, samples_of(TEXT))
            with pytest.raises(NotFound, match="talker"):
                await client.chat("talkr", "hi").text()
            with pytest.raises(InvalidArgument, match="empty"):
                await client.speak("talker", " ").collect()

    asyncio.run(both())


# ---- leaving early


def test_leaving_the_loop_takes_the_request_back(talker_client: Client, talking: ToyRuntime) -> None:
    talking.script("chat", endless(write))
    talking.script("speech", endless(speak))
    for stream in (talker_client.chat("talker", "hi"), talker_client.speak("talker", "hi")):
        for _ in stream:  # type: ignore[attr-defined]
            break
    talking.wait_for(CancelRequest, 2)
    waiting = talker_client.chat("talker", "hi")
    pieces = iter(waiting)
    assert next(pieces).text == "word"
    waiting.cancel()
    talking.wait_for(CancelRequest, 3)
    with pytest.raises(Cancelled, match=r"the call to .* was cancelled by this client: call again"):
        next(pieces)
    talking.wait_until_nothing_is_held()


def test_a_task_that_is_cancelled_takes_its_request_back(talking: ToyRuntime) -> None:
    talking.script("speech", endless(speak))

    async def leave() -> None:
        async with connect_async(talking.address) as client:
            listening = asyncio.create_task(client.speak("talker", "hi").collect())
            await asyncio.to_thread(talking.wait_for, Submit)
            listening.cancel()
            await asyncio.wait([listening])
            await asyncio.to_thread(talking.wait_for, CancelRequest)

    asyncio.run(leave())


# ---- what goes wrong


async def fail(job: Job) -> None:
    job.fail("RESOURCE_EXHAUSTED", "no pages are free")


async def silent(job: Job) -> None:
    for name in ("reason", "num_input_tokens", "num_output_tokens"):
        job.emit(name, np.array(1, np.int64))
    job.finish()


def test_what_the_server_says_arrives(talker_client: Client, talking: ToyRuntime) -> None:
    talking.script("chat", fail)
    with pytest.raises(ResourceExhausted, match="no pages") as refused:
        talker_client.chat("talker", "hi").text()
    assert refused.value.__notes__ == [f"request id {talking.seen(Submit)[0].request_id}"]
    talking.script("speech", silent)
    with pytest.raises(FailedPrecondition, match="no sound, and ended with 'end'"):
        talker_client.speak("talker", "hi").collect()
    talking.script("speech", endless(speak))
    with pytest.raises(DeadlineExceeded):
        talker_client.speak("talker", "hi", timeout_s=0.05).collect()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": 3}, "model is 3"),
        ({"conversation": [{"role": "robot", "content": "x"}]}, "'robot'"),
        ({"conversation": [("user", "x")]}, "a turn is"),
        ({"conversation": [{"role": "user", "content": 3}]}, "content"),
        ({"conversation": "\ud800"}, "content"),
        ({"task": 3}, "task is 3"),
        ({"budget_ms": 0}, "budget_ms"),
        ({"max_tokens": 2.5}, "'max_tokens' cannot be 2.5: a whole number is expected"),
        ({"max_tokens": -1}, "'max_tokens' cannot be -1: a whole number from 0 to 4294967295 is expected"),
        ({"max_tokens": "x" * 70}, f"'max_tokens' cannot be '{'x' * 64}' \\.\\.\\.: a whole number"),
        ({"max_tokens": None}, "'max_tokens' is None"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": -1}, "'seed' cannot be -1: a whole number from 0 to 9223372036854775807 is expected"),
        ({"seed": 2**63}, "'seed' cannot be 9223372036854775808: a whole number from 0 to 9223372036854775807"),
        ({"seed": 1.5}, "'seed' cannot be 1.5: a whole number is expected"),
        ({"stop": [3]}, "stop"),
        ({"spice": object()}, "spice"),
    ],
)
def test_arguments_that_chat_cannot_send(alone: Client, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        alone.chat(**{"model": "talker", "conversation": "hi", **arguments})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"encoding": "mp3"}, "pcm16, float32"),
        ({"playback_buffer_s": "long"}, "playback_buffer_s"),
        ({"voice": 3}, "voice"),
        ({"text": b"bytes"}, "content"),
    ],
)
def test_arguments_that_speak_cannot_send(alone: Client, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        alone.speak(**{"model": "talker", "text": "hi", **arguments})


# ---- the commands


def test_mstar_rt_chat_answers_once_or_keeps_a_conversation(
    talking: ToyRuntime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["chat", "hi", "--seed", "3", "--address", talking.address]) == 0
    assert capsys.readouterr().out == "1 turns, seed 3: hi\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo"))
    assert main(["chat", "--model", "talker", "--seed", "3", "--address", talking.address]) == 0
    assert capsys.readouterr().out == "1 turns, seed 3: one\n3 turns, seed 3: two\n"
    assert main(["chat", "hi", "--max-tokens", "0", "--address", talking.address]) == 2
    assert "talker.chat: --max-tokens is 0, expected" in capsys.readouterr().err


def test_mstar_rt_say_writes_a_wav(talking: ToyRuntime, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "said.wav")
    assert main(["say", TEXT, "--out", file, "--voice", "bob", "--address", talking.address]) == 0
    assert capsys.readouterr().out == f"{file}: 0.30 s\n"
    with wave.open(file) as said:
        assert (said.getframerate(), said.getnframes()) == (SAMPLE_RATE_HZ, 3 * CHUNK_SAMPLES)
    assert talking.seen(Submit)[0].params["voice"] == "bob"


def test_without_a_model_for_it_the_commands_say_so(runtime: ToyRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "hi", "--address", runtime.address]) == 2
    assert "no model has the task 'chat'" in capsys.readouterr().err
