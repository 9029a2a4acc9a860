"""Speech: the ways to the same utterances, with the same weights and as many tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.speech.cases import Case, Sampling
from benchmarks.speech.checkpoints import NUM_PLACES, SAMPLES_PER_FRAME, SIZES
from benchmarks.speech.heard import Heard, Wave
from benchmarks.speech.native import VOICE, NativeSpeech
from mstar_rt.client import AsyncClient

NAIVE, STAGES, SERVED = "naive loop", "stage by stage", "served over gRPC"
TEXTS = (
    "Good morning, the kitchen is clean and the coffee is ready.",
    "I am on my way.",
    "The parcel with the blue label belongs to the third shelf from the left.",
    "Please step back a little, the arm is about to move.",
    "Seven of nine.",
    "It is raining, so I have closed the windows and turned on the light in the hall.",
    "Which of the two do you want?",
    "The battery will last for another forty minutes at this speed.",
)


class SpeechSystems:
    """`folder` has the checkpoint that the server serves under the name of the size."""

    def __init__(self, size: str, folder: Path, client: AsyncClient) -> None:
        self._name = size
        self._client = client
        self._native = NativeSpeech(SIZES[size], folder)

    async def run(self, system: str, case: Case, num_streams: int) -> Wave:
        texts = TEXTS[:num_streams]
        if system == SERVED:
            wave = await self._served(texts, case.num_tokens, case.sampling)
        else:
            way = {NAIVE: self._native.one_after_the_other, STAGES: self._native.stage_by_stage}[system]
            wave = way(texts, case.num_tokens, case.sampling)
        _check_work(wave, case.num_tokens, num_streams)
        return wave

    async def _served(self, texts: Sequence[str], num_tokens: int, sampling: Sampling) -> Wave:
        return await asyncio.gather(*(self._speak(text, num_tokens, sampling) for text in texts))

    async def _speak(self, text: str, num_tokens: int, sampling: Sampling) -> Heard:
        arrivals: list[tuple[float, np.ndarray]] = []
        start_s = time.perf_counter()
        stream = self._client.speak(
            self._name, text, encoding="float32", voice=VOICE, max_tokens=num_tokens, ignore_end=True,
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
        )  # fmt: skip
        async for piece in stream:
            arrivals.append((time.perf_counter() - start_s, piece.samples))
        took_s = time.perf_counter() - start_s
        assert stream.done is not None
        return Heard(arrivals, took_s, stream.done.num_output_tokens)


def _check_work(wave: Wave, num_tokens: int, num_streams: int) -> None:
    """Nobody does less than the others: as many tokens, and all the audio that is in them."""
    assert len(wave) == num_streams
    for heard in wave:
        num_samples = num_tokens // NUM_PLACES * SAMPLES_PER_FRAME
        assert heard.num_tokens == num_tokens, f"{heard.num_tokens} tokens, expected {num_tokens}"
        assert len(heard.audio) == num_samples, f"{len(heard.audio)} samples, expected {num_samples}"
