"""Generation.Generate over real gRPC: text and sound as they are made, refusals, cancelling, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from toy_generators import (
    CHUNK_SAMPLES,
    MAX_TOKENS,
    SAMPLE_RATE_HZ,
    endless,
    sample_of,
    speak,
    talker,
    talking_runtime,
    write,
)
from toy_runtime import Job, ToyRuntime, toy_runtime

from mstar_rt.message import CancelRequest, Playback, Submit
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import generation_pb2_grpc, request_pb2

USER, ASSISTANT, SYSTEM = wire.Turn.ROLE_USER, wire.Turn.ROLE_ASSISTANT, wire.Turn.ROLE_SYSTEM
FLOAT32, PCM16 = wire.Audio.ENCODING_FLOAT32, wire.Audio.ENCODING_PCM16


@pytest.fixture
def talking() -> Iterator[ToyRuntime]:
    with talking_runtime() as running:
        yield running


@pytest.fixture
def generate(talking: ToyRuntime) -> Iterator[Any]:
    with grpc.insecure_channel(talking.address) as channel:
        yield generation_pb2_grpc.GenerationStub(channel).Generate


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[Any, ToyRuntime]]:
    """For requests that never reach the runtime."""
    with talking_runtime() as running, grpc.insecure_channel(running.address) as channel:
        yield generation_pb2_grpc.GenerationStub(channel).Generate, running


def turn(text: str, role: wire.Turn.Role = USER) -> wire.Turn:
    return wire.Turn(role=role, parts=[wire.Part(text=text)])


def request(task: str = "chat", **fields: Any) -> wire.GenerateRequest:
    return wire.GenerateRequest(**{"model": "talker", "task": task, "turns": [turn("Hello there")], **fields})


def text_of(answers: list[wire.GenerateResponse]) -> str:
    return "".join(answer.text.text for answer in answers)


# ---- text


def test_text_comes_as_it_is_written_then_how_it_ended(generate: Any, talking: ToyRuntime) -> None:
    call = generate(request(turns=[turn("be brief", SYSTEM), turn("Grüße", USER)], seed=7))
    *pieces, last = list(call)
    assert text_of(pieces) == "2 turns, seed 7: Grüße"
    assert [piece.WhichOneof("answer") for piece in pieces] == ["text"] * len(pieces)
    assert sum(piece.text.num_tokens for piece in pieces) == last.done.num_output_tokens == len(text_of(pieces))
    assert (last.done.reason, last.done.num_input_tokens) == (wire.GenerateDone.REASON_END, 13)
    (submit,) = talking.wait_for(Submit)
    assert last.done.request_id == submit.request_id == dict(call.trailing_metadata())["mstar-request-id"]
    assert (submit.task, submit.criticality) == ("chat", "generation")
    timing = last.done.timing
    assert 0 < timing.encode_us < timing.total_us
    assert timing.decode_us > 0


def test_a_piece_is_sent_before_the_next_one_is_made(generate: Any, talking: ToyRuntime) -> None:
    talking.script("chat", endless(write))
    call = generate(request())
    assert next(call).text.text == "word"
    call.cancel()
    (cancelled,) = talking.wait_for(CancelRequest)
    assert cancelled.request_id == talking.seen(Submit)[0].request_id
    talking.wait_until_nothing_is_held()


def test_tokens_without_characters_count_with_the_next_ones(generate: Any, talking: ToyRuntime) -> None:
    """The bytes of one character may take several tokens; the last of them may write nothing."""

    async def slow_character(job: Job) -> None:
        for step, text in enumerate(["", "", "ü", ""]):
            write(job, text, step)
        for name, value in (("reason", 1), ("num_input_tokens", 3)):
            job.emit(name, np.array(value, np.int64))
        job.finish()

    talking.script("chat", slow_character)
    piece, last = list(generate(request()))
    assert (piece.text.text, piece.text.num_tokens) == ("ü", 3)
    assert last.done.num_output_tokens == 4


def test_options_reach_the_model_and_end_the_text(generate: Any, talking: ToyRuntime) -> None:
    options = wire.TextOptions(temperature=0.0, stop=["seed", "!"], max_tokens=12)
    *pieces, last = list(generate(request(text=options, seed=3)))
    assert (text_of(pieces), last.done.reason) == ("1 turns, ", wire.GenerateDone.REASON_STOP)
    assert talking.seen(Submit)[0].params == {
        "seed": 3, "max_tokens": 12, "temperature": 0.0, "top_p": 1.0, "stop": '["seed", "!"]',
    }  # fmt: skip
    *pieces, last = list(generate(request(text=wire.TextOptions(max_tokens=4))))
    assert (text_of(pieces), last.done.reason) == ("1 tu", wire.GenerateDone.REASON_MAX_TOKENS)


def test_without_a_seed_it_is_fresh_each_time(generate: Any, talking: ToyRuntime) -> None:
    for _ in range(2):
        list(generate(request()))
    seeds = [submit.params["seed"] for submit in talking.seen(Submit)]
    assert seeds[0] != seeds[1]


# ---- sound


@pytest.mark.parametrize(("encoding", "bytes_per_sample"), [(None, 2), (PCM16, 2), (FLOAT32, 4)])
def test_sound_comes_in_order_without_gaps(generate: Any, encoding: Any, bytes_per_sample: int) -> None:
    speech = wire.SpeechOptions(voice="bob", encoding=encoding)
    *pieces, last = list(generate(request("speech", speech=speech)))
    assert [piece.audio.first_sample for piece in pieces] == [0, CHUNK_SAMPLES]
    for piece, word in zip(pieces, ("Hello", "there"), strict=True):
        audio = piece.audio.audio
        assert (audio.sample_rate_hz, audio.num_channels) == (SAMPLE_RATE_HZ, 1)
        assert audio.encoding == (encoding or PCM16)
        assert len(audio.data) == CHUNK_SAMPLES * bytes_per_sample
        if bytes_per_sample == 4:
            assert (np.frombuffer(audio.data, "<f4") == np.float32(sample_of(word))).all()
        else:
            assert (np.frombuffer(audio.data, "<i2") == round(sample_of(word) * 32767)).all()
    assert last.done.num_samples == 2 * CHUNK_SAMPLES
    assert (last.done.num_input_tokens, last.done.num_output_tokens) == (2, 2)


def test_the_runtime_knows_that_somebody_listens_and_what_he_has_in_hand(generate: Any, talking: ToyRuntime) -> None:
    list(generate(request("speech")))
    list(generate(request("speech", speech=wire.SpeechOptions(playback_buffer_s=0.5))))
    list(generate(request("chat")))
    assert [submit.playback for submit in talking.seen(Submit)] == [
        Playback("audio", SAMPLE_RATE_HZ, 0.0),
        Playback("audio", SAMPLE_RATE_HZ, 0.5),
        None,
    ]


def test_a_listener_who_leaves_stops_the_speaker(generate: Any, talking: ToyRuntime) -> None:
    talking.script("speech", endless(speak, first=3))
    call = generate(request("speech"))
    assert [next(call).audio.first_sample for _ in range(3)] == [0, CHUNK_SAMPLES, 2 * CHUNK_SAMPLES]
    call.cancel()
    talking.wait_for(CancelRequest)
    talking.wait_until_nothing_is_held()


def test_a_failure_after_some_sound_ends_the_call_with_its_sentence(generate: Any, talking: ToyRuntime) -> None:
    async def break_down(job: Job) -> None:
        speak(job, "word", 0)
        job.fail("INTERNAL", "the codec broke")

    talking.script("speech", break_down)
    call = generate(request("speech"))
    assert next(call).audio.first_sample == 0
    with pytest.raises(grpc.RpcError) as failure:
        next(call)
    assert (failure.value.code(), failure.value.details()) == (grpc.StatusCode.INTERNAL, "the codec broke")


# ---- what is refused


def part(**content: Any) -> list[wire.Turn]:
    return [wire.Turn(role=USER, parts=[wire.Part(**content)])]


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (request(model="talkers"), "NOT_FOUND", ["did you mean 'talker'"]),
        (request("speach"), "NOT_FOUND", ["did you mean 'speech'"]),
        (request(task=None), "INVALID_ARGUMENT", ["several tasks", "chat, speech"]),
        (request(turns=[]), "INVALID_ARGUMENT", ["turns"]),
        (request(turns=[turn("hi", 0)]), "INVALID_ARGUMENT", ["turn 0", "role 0", "system, user, assistant"]),
        (request(turns=[turn("hi"), turn("yes", ASSISTANT)]), "INVALID_ARGUMENT", ["ends", "'assistant'"]),
        (request(turns=[turn(" \n")]), "INVALID_ARGUMENT", ["no word"]),
        (request(turns=[turn("x" * 5000)]), "INVALID_ARGUMENT", ["5004 characters", "4096 bytes"]),
        (request(turns=part(audio=wire.Audio())), "INVALID_ARGUMENT", ["turn 0", "audio", "expected text or an image"]),
        (request(turns=part()), "INVALID_ARGUMENT", ["empty part"]),
        (request(text=wire.TextOptions(top_k=5)), "INVALID_ARGUMENT", ["top_k"]),
        (request(text=wire.TextOptions(max_tokens=MAX_TOKENS + 1)), "INVALID_ARGUMENT", ["max_tokens", "1 to 64"]),
        (request(text=wire.TextOptions(stop=[""])), "INVALID_ARGUMENT", ["stop"]),
        (request(text=wire.TextOptions(stop=["x"] * 17)), "INVALID_ARGUMENT", ["17"]),
        (request(seed=2**63), "INVALID_ARGUMENT", ["seed is 9223372036854775808, expected 0 to 9223372036854775807"]),
        (request(speech=wire.SpeechOptions(voice="amy")), "INVALID_ARGUMENT", ["options of speech", "voice"]),
        (request(image=wire.ImageOptions(height=64)), "INVALID_ARGUMENT", ["options of images", "height"]),
        (request(options=request_pb2.RequestOptions(budget_ms=-1)), "INVALID_ARGUMENT", ["budget_ms"]),
        (request(model_options={"spice": request_pb2.OptionValue(flag=True)}), "INVALID_ARGUMENT", ["spice"]),
        (
            request(seed=1, model_options={"seed": request_pb2.OptionValue(integer=2)}),
            "INVALID_ARGUMENT",
            ["'seed'", "twice"],
        ),
        (request("speech", turns=[turn("a"), turn("b")]), "INVALID_ARGUMENT", ["2 turns"]),
        (request("speech", turns=[turn("a", SYSTEM)]), "INVALID_ARGUMENT", ["one turn of the user"]),
        (request("speech", turns=[turn("x" * 4097)]), "INVALID_ARGUMENT", ["4097 characters"]),
        (request("speech", turns=[turn("ü" * 4000)]), "INVALID_ARGUMENT", ["N = 8000", "4096"]),
        (request("speech", turns=[turn("  ")]), "INVALID_ARGUMENT", ["empty"]),
        (request("speech", text=wire.TextOptions(stop=["x"])), "INVALID_ARGUMENT", ["stop"]),
        (request("speech", speech=wire.SpeechOptions(voice="eve")), "INVALID_ARGUMENT", ["voice", "amy, bob"]),
        (request("speech", speech=wire.SpeechOptions(speed=9)), "INVALID_ARGUMENT", ["speed"]),
        (
            request("speech", speech=wire.SpeechOptions(first_chunk_frames=1)),
            "INVALID_ARGUMENT",
            ["first_chunk_frames"],
        ),
        (request("speech", speech=wire.SpeechOptions(encoding=wire.Audio.ENCODING_WAV)), "INVALID_ARGUMENT", ["PCM16"]),
        (request("speech", speech=wire.SpeechOptions(playback_buffer_s=-1)), "INVALID_ARGUMENT", ["playback_buffer_s"]),
        (
            request("speech", speech=wire.SpeechOptions(playback_buffer_s=float("nan"))),
            "INVALID_ARGUMENT",
            ["playback_buffer_s"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    refusing: tuple[Any, ToyRuntime], asked: wire.GenerateRequest, code: str, words: list[str]
) -> None:
    generate, runtime = refusing
    with pytest.raises(grpc.RpcError) as failure:
        next(generate(asked))
    assert failure.value.code().name == code
    for word in words:
        assert word in failure.value.details()
    assert runtime.seen(Submit) == []


def test_the_only_task_needs_no_name() -> None:
    with talking_runtime(model=talker(chats=False)) as running, grpc.insecure_channel(running.address) as channel:
        generate = generation_pb2_grpc.GenerationStub(channel).Generate
        assert [answer.WhichOneof("answer") for answer in generate(request(task=None))] == ["audio", "audio", "done"]
        with pytest.raises(grpc.RpcError) as failure:
            next(generate(request("chat")))
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_model_that_generates_nothing_says_so() -> None:
    with toy_runtime() as running, grpc.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.RpcError) as failure:
            next(generation_pb2_grpc.GenerationStub(channel).Generate(request(model="toy", task=None)))
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "generates nothing" in failure.value.details()


# ---- deadlines


def test_the_nearer_deadline_goes_to_the_runtime(generate: Any, talking: ToyRuntime) -> None:
    list(generate(request(options=request_pb2.RequestOptions(budget_ms=5_000)), timeout=1000))
    list(generate(request(options=request_pb2.RequestOptions(budget_ms=500_000)), timeout=50))
    list(generate(request()))
    near, far, never = (submit.deadline_ns for submit in talking.seen(Submit))
    assert never is None
    assert 10e9 < far - near < 60e9


def test_a_request_that_is_out_of_time_says_so(generate: Any, talking: ToyRuntime) -> None:
    async def too_late(job: Job) -> None:
        write(job, "word", 0)
        await asyncio.sleep(0)
        job.fail("DEADLINE_EXCEEDED", "the time is over")

    talking.script("chat", too_late)
    with pytest.raises(grpc.RpcError) as failure:
        list(generate(request(options=request_pb2.RequestOptions(budget_ms=5_000))))
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
