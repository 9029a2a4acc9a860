"""What is measured: sizes, sampling, how many utterances at once; and the figures that are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.speech.checkpoints import ALL_WORDS, MIDDLE, NUM_PLACES, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, TINY


@dataclass(frozen=True)
class Sampling:
    """`top_k` 0: no limit. A `temperature` of 0 takes the best, whatever `top_p`."""

    name: str
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


GREEDY = Sampling("greedy")
PUBLISHED = Sampling("as published", temperature=0.6, top_p=0.8, repetition_penalty=1.3)


def frames_in(seconds: float) -> int:
    """Whole frames that sound for at least so long."""
    return -(-round(seconds * SAMPLE_RATE_HZ) // SAMPLES_PER_FRAME)


@dataclass(frozen=True)
class Case:
    """Utterances of `seconds` each, all asked for at the same moment, over several numbers of them."""

    size: str
    sampling: Sampling
    seconds: float
    streams: tuple[int, ...]
    num_rounds: int

    @property
    def num_tokens(self) -> int:
        return frames_in(self.seconds) * NUM_PLACES

    def name(self, num_streams: int) -> str:
        return f"{self.size}, {self.sampling.name}, {self.seconds:g} s, {num_streams} at once"


@dataclass(frozen=True)
class TextCase:
    """Answers of `num_tokens` to as many conversations at once as `batches` says."""

    model: str
    num_tokens: int
    batches: tuple[int, ...]
    num_rounds: int

    def name(self, batch: int) -> str:
        return f"{self.model}, {self.num_tokens} tokens of text, {batch} at once"


SMOLLM2 = "SmolLM2-135M"
TALKER = "talker"
"""A small Llama with few words: its steps are short, so that what the runtime adds to them shows."""

LONG_S = 5.0
STREAMS = (1, 2, 4, 8)
TEXT_BATCHES = (1, 4, 8)


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case(TINY.name, GREEDY, 1.0, (1, 8), 2), Case(TINY.name, PUBLISHED, LONG_S, (1,), 1)]
    rounds = {TINY.name: 3, MIDDLE.name: 2}
    samplings = (GREEDY, PUBLISHED)
    return [
        *(Case(size, each, LONG_S, STREAMS, num_rounds) for size, num_rounds in rounds.items() for each in samplings),
        Case(ALL_WORDS.name, PUBLISHED, 1.0, (1, 8), 2),
    ]


def text_cases(quick: bool) -> list[TextCase]:
    if quick:
        return [TextCase(TALKER, 48, TEXT_BATCHES, 3), TextCase(SMOLLM2, 6, (1, 4), 1)]
    return [TextCase(TALKER, 256, TEXT_BATCHES, 5), TextCase(SMOLLM2, 64, TEXT_BATCHES, 3)]


MIN_SPEED_ALONE = 1.0
MIN_SPEED_OF_EIGHT = 2.5
MIN_EARLIER = 4.0
MIN_OF_GENERATE = 1.0
"""Served over native: seconds of audio per second with one utterance and with eight, how much earlier the first audio
of a long utterance comes, and tokens per second of text."""
