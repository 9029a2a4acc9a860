"""What users of other speech servers met, as tests: sound that is lost, cut off or not the one asked for, and what a
request that fails or goes away leaves behind. The numbers are those of the list of bugs in the facts on generators."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composite_serving import ENVIRONMENT
from serving import MAX_POLLS, Serving, held, serving_of, write_deployment

from benchmarks.speech.checkpoints import SAMPLES_PER_FRAME, Size, write_checkpoint
from benchmarks.speech.llamas import LlamaSize
from mstar_rt.client import Client
from mstar_rt.errors import Cancelled, Internal, InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SIZE = Size("speaker", LlamaSize(32, 1, 2, 1, 32), 16, 32)
FRAME = 7
WHOLE = "whole"
STRIDES = {"one": (1, 1), "ramp": (1, 10), "many": (4, 25), WHOLE: (500, 500)}
"""Frames of the first chunk and of later ones. `whole` waits for all of an utterance."""
APART = "apart"
"""Its codec runs on another rank than its language model."""
AT_ONCE_S = 3.0
"""In fact milliseconds, on a machine that does nothing else."""
NODES = {"prompt": 0, "prefill": 0, "decode": 9, "codec": 1, "finish": 0}
"""Each node of the walk, and an iteration of it that an utterance of a few frames has."""


@pytest.fixture(scope="module")
def speech_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("speech")
    write_checkpoint(SIZE, folder / SIZE.name)
    models = [_model(name, first, most) for name, (first, most) in STRIDES.items()] + [_model(APART, 1, 4)]
    deployment = {
        "name": "speech",
        "server": {"port": 0},
        "models": models,
        "workers": [{"rank": rank, "kv_memory_mb": 16, "shared_memory_mb": 64, "max_batch": 8} for rank in range(2)],
        "placement": [{"model": model["name"], "ranks": [0]} for model in models]
        + [{"model": APART, "nodes": ["codec"], "ranks": [1]}],
    }
    with serving_of(write_deployment(folder, deployment), ENVIRONMENT, folder / "log") as running:
        yield running


def _model(name: str, first: int, most: int) -> dict[str, Any]:
    return {
        "name": name, "family": "faulty_speaker:declare", "checkpoint": SIZE.name,
        "options": {"first_chunk_frames": first, "max_chunk_frames": most},
    }  # fmt: skip


@pytest.fixture
def speaker(speech_serving: Serving) -> Iterator[Client]:
    with speech_serving.connect() as connected:
        yield connected
        assert_nothing_is_left(connected)


def assert_nothing_is_left(client: Client) -> None:
    """By a request that has ended, after a moment."""
    end_s = time.monotonic() + AT_ONCE_S
    left = held(client)
    for _ in range(MAX_POLLS):
        if not left or time.monotonic() > end_s:
            break
        left = held(client)
    assert not left


def say(client: Client, model: str, num_tokens: int, text: str = "Hello.", **options: Any) -> np.ndarray:
    """Samples [S]."""
    stream = client.speak(model, text, encoding="float32", max_tokens=num_tokens, ignore_end=True, **options)
    samples = np.concatenate([np.zeros(0, np.float32), *(piece.samples for piece in stream)])
    assert stream.done is not None
    assert stream.done.num_output_tokens == num_tokens
    assert stream.done.num_samples == len(samples)
    return samples


@pytest.mark.parametrize("num_frames", [1, 2, 9])
def test_bugs_1_and_3_streamed_is_offline(speaker: Client, num_frames: int) -> None:
    """Bit for bit, so nothing is lost at a seam and nothing is added to the noise floor."""
    offline = say(speaker, WHOLE, num_frames * FRAME, seed=3)
    assert len(offline) == num_frames * SAMPLES_PER_FRAME
    assert offline.std() > 0.01
    for model in STRIDES.keys() - {WHOLE}:
        assert np.array_equal(say(speaker, model, num_frames * FRAME, seed=3), offline), model


def test_bug_5_short_utterances_sound(speaker: Client) -> None:
    """Every whole frame, from the first."""

    def num_frames(num_tokens: int) -> float:
        return len(say(speaker, "ramp", num_tokens)) / SAMPLES_PER_FRAME

    lengths = [FRAME * num_frames + more for num_frames in (1, 2, 3, 4) for more in (0, 1, 6)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(num_frames, lengths)) == [length // FRAME for length in lengths]


def test_bug_7_the_end_is_never_cut_off(speaker: Client) -> None:
    """The language model ends on one rank while the codec is anywhere on the other: utterances of all lengths at once."""
    rng = np.random.default_rng(0)
    asked = [(int(length), seed) for seed, length in enumerate(rng.integers(1, 6 * FRAME, 12))]

    def both(length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        text = f"Hello number {seed}."
        return say(speaker, APART, length, text, seed=seed), say(speaker, "ramp", length, text, seed=seed)

    with ThreadPoolExecutor(8) as pool:
        for (length, _), (apart, near) in zip(asked, pool.map(lambda each: both(*each), asked), strict=True):
            assert len(apart) == length // FRAME * SAMPLES_PER_FRAME
            assert np.array_equal(apart, near)


def test_bug_9_seeds_count(speaker: Client) -> None:
    alone = [say(speaker, "ramp", 3 * FRAME, seed=seed) for seed in (1, 2)]
    assert not np.array_equal(alone[0], alone[1])
    with ThreadPoolExecutor(8) as pool:
        for seed, samples in zip([1, 2] * 4, pool.map(lambda seed: say(speaker, "ramp", 21, seed=seed), [1, 2] * 4)):
            assert np.array_equal(samples, alone[seed - 1])
    assert not np.array_equal(say(speaker, "ramp", 21), say(speaker, "ramp", 21))


@pytest.mark.parametrize("model", ["ramp", APART])
def test_bug_13_an_error_of_a_stage_is_an_answer_at_once(speaker: Client, model: str) -> None:
    expected = say(speaker, model, 5 * FRAME, seed=1)
    for node, iteration in NODES.items():
        began_s = time.monotonic()
        with pytest.raises(Internal, match=f"node '{node}' failed") as caught:
            say(speaker, model, 5 * FRAME, fault=node, fault_at=iteration)
        assert time.monotonic() - began_s < AT_ONCE_S
        assert "secret" not in str(caught.value)
        assert np.array_equal(say(speaker, model, 5 * FRAME, seed=1), expected)


@pytest.mark.parametrize("model", ["one", APART])
def test_bug_14_who_leaves_at_any_chunk_leaves_nothing(speaker: Client, model: str) -> None:
    for num_heard in range(5):
        stream = speaker.speak(model, "Hello.", max_tokens=1400, ignore_end=True)
        pieces = iter(stream)
        for _ in range(num_heard):
            next(pieces)
        stream.cancel()
        with pytest.raises(Cancelled):
            list(pieces)
        assert_nothing_is_left(speaker)


def test_bug_15_failed_requests_keep_no_memory(speech_serving: Serving, speaker: Client) -> None:
    """Those that fail in the second stage, with sound on the way, and those that are refused."""

    def fail(number: int) -> None:
        kinds: tuple[dict[str, Any], ...] = (
            {"fault": "codec", "fault_at": 1}, {"fault": "decode", "fault_at": 16}, {"text": "  "},
        )  # fmt: skip
        with pytest.raises((Internal, InvalidArgument)):
            say(speaker, APART, 4 * FRAME, **kinds[number % 3])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fail, range(12)))
        assert_nothing_is_left(speaker)
        before_mb, segments = _memory_mb(speech_serving), set(os.listdir("/dev/shm"))
        list(pool.map(fail, range(48)))
    assert_nothing_is_left(speaker)
    grown_mb = _memory_mb(speech_serving) - before_mb
    assert grown_mb < 12, f"48 failed requests kept {grown_mb:.1f} MB"
    assert not {name for name in set(os.listdir("/dev/shm")) - segments if name.startswith("mstar")}


def _memory_mb(serving: Serving) -> float:
    """Of both workers."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in serving.worker_pids().values())
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
