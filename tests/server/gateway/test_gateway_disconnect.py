"""Clients that leave: whatever they have had of an answer, everything is free within a second."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from openai import APITimeoutError, OpenAI

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import client_of, painting, replaced, served
from toy_generators import CHUNK_SAMPLES, NAME, endless, speak, write
from toy_painter import NAME as PAINTER
from toy_painter import endless_steps
from toy_runtime import Job, ToyRuntime

from mstar_rt.message import CancelRequest, Submit
from mstar_rt.server.gateway import server

WITHIN_S = 1.0
SPEECH = {"model": NAME, "voice": "default", "input": "a word"}
HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def runtime() -> Iterator[ToyRuntime]:
    with served() as running:
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[OpenAI]:
    with client_of(runtime) as opened:
        yield opened


def assert_freed(runtime: ToyRuntime, num_cancelled: int, since_s: float) -> None:
    cancelled = runtime.wait_for(CancelRequest, num_cancelled)
    runtime.wait_until_nothing_is_held()
    assert time.monotonic() - since_s < WITHIN_S
    assert cancelled[-1].request_id == runtime.seen(Submit)[-1].request_id


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_after_any_chunk_of_audio(runtime: ToyRuntime, client: OpenAI, after: int, stream_format: str) -> None:
    num_before = len(runtime.seen(CancelRequest))
    fields: dict[str, Any] = {**SPEECH, "response_format": "pcm", "stream_format": stream_format}
    with replaced(runtime, "speech", endless(speak, first=after)):
        with client.audio.speech.with_streaming_response.create(**fields) as answer:
            num_bytes, pieces = 0, answer.iter_bytes()
            while num_bytes < after * 2 * CHUNK_SAMPLES:
                num_bytes += len(next(pieces))
            left_s = time.monotonic()
        assert_freed(runtime, num_before + 1, left_s)


@pytest.mark.parametrize("after", [1, 3])
def test_after_any_token(runtime: ToyRuntime, client: OpenAI, after: int) -> None:
    num_before = len(runtime.seen(CancelRequest))
    with replaced(runtime, "chat", endless(write, first=after)):
        chunks = client.chat.completions.create(**CHAT, stream=True)
        for _ in range(after):
            next(iter(chunks))
        left_s = time.monotonic()
        chunks.close()
        assert_freed(runtime, num_before + 1, left_s)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("num_images", [1, 4])
def test_after_any_partial_image(after: int, num_images: int) -> None:
    """All images of the call are taken back."""
    with painting() as runtime, client_of(runtime) as client:
        runtime.script("text_to_image", endless_steps(after))
        fields: dict[str, Any] = {"model": PAINTER, "prompt": "a barn", "n": num_images}
        events = client.images.generate(**fields, stream=True, partial_images=3)
        for _ in range(after):
            next(iter(events))
        left_s = time.monotonic()
        events.close()
        runtime.wait_for(CancelRequest, num_images)
        runtime.wait_until_nothing_is_held()
        assert time.monotonic() - left_s < WITHIN_S
        with pytest.raises(APITimeoutError):
            client.images.generate(**fields, timeout=0.2)
        runtime.wait_for(CancelRequest, 2 * num_images)


@pytest.mark.parametrize("first", [0, 2])
def test_while_the_whole_answer_is_made(runtime: ToyRuntime, client: OpenAI, first: int) -> None:
    """Nothing was written that could have failed: the client is watched all the time."""
    num_before = len(runtime.seen(CancelRequest))
    with replaced(runtime, "speech", endless(speak, first)), replaced(runtime, "chat", endless(write, first)):
        for create, fields in ((client.audio.speech.create, SPEECH), (client.chat.completions.create, CHAT)):
            num_before += 1
            with pytest.raises(APITimeoutError):
                create(**fields, timeout=0.2)
            assert_freed(runtime, num_before, time.monotonic())


def test_before_the_first_token_of_a_stream(runtime: ToyRuntime, client: OpenAI) -> None:
    num_before = len(runtime.seen(CancelRequest))
    with replaced(runtime, "chat", endless(write, first=0)), pytest.raises(APITimeoutError):
        client.chat.completions.create(**CHAT, stream=True, timeout=0.2)
    assert_freed(runtime, num_before + 1, time.monotonic())


def test_in_the_middle_of_its_own_request(runtime: ToyRuntime) -> None:
    num_before = len(runtime.seen(Submit))
    sock = connected(runtime)
    sock.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\n{{".encode())
    sock.close()
    with client_of(runtime) as client:
        client.models.list()
    assert len(runtime.seen(Submit)) == num_before


def test_one_that_resets_while_it_does_not_read(runtime: ToyRuntime) -> None:
    """The connection is full, the writer waits."""
    num_before = len(runtime.seen(CancelRequest))
    num_submitted = len(runtime.seen(Submit))
    with replaced(runtime, "speech", endless(speak_long, first=60)):
        sock = connected(runtime, receive_bytes=4096)
        ask(sock)
        runtime.wait_for(Submit, num_submitted + 1)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left_s = time.monotonic()
        sock.close()
        assert_freed(runtime, num_before + 1, left_s)


def connected(runtime: ToyRuntime, receive_bytes: int | None = None) -> socket.socket:
    assert runtime.edge.gateway is not None
    host, port = runtime.edge.gateway.address.removeprefix("http://").removesuffix("/v1").split(":")
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect((host, int(port)))
    return sock


def test_one_that_takes_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is there and says so: the window stays shut."""
    monkeypatch.setattr(server, "STUCK_MS", 300)
    with served() as runtime, replaced(runtime, "speech", endless(speak_long, first=60)):
        sock = connected(runtime, receive_bytes=4096)
        ask(sock)
        runtime.wait_for(CancelRequest)
        runtime.wait_until_nothing_is_held()
        sock.close()


def speak_long(job: Job, word: str, step: int) -> None:
    """More than connections hold, in few pieces."""
    job.emit("audio", np.zeros(80_000, np.float32), (step,))


def ask(sock: socket.socket) -> None:
    body = msgspec.json.encode({**SPEECH, "response_format": "pcm"})
    head = f"POST /v1/audio/speech HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
