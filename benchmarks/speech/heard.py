"""What a player hears of one utterance, and the figures that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.speech.checkpoints import SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Heard:
    """One utterance. `arrivals`: seconds since it was asked for, and the samples [S] that came then; `end_s`: when all
    was there."""

    arrivals: Sequence[tuple[float, np.ndarray]]
    end_s: float
    num_tokens: int

    @property
    def audio(self) -> np.ndarray:
        """Samples [S]."""
        return np.concatenate([samples for _, samples in self.arrivals])

    @property
    def duration_s(self) -> float:
        return sum(len(samples) for _, samples in self.arrivals) / SAMPLE_RATE_HZ

    @property
    def first_audio_s(self) -> float:
        return next(at_s for at_s, samples in self.arrivals if len(samples))

    @property
    def real_time_factor(self) -> float:
        """From when it was asked for to its last sample, over how long it sounds: what comes before the first audio is
        part of it."""
        return self.end_s / self.duration_s

    def underrun_s(self, buffer_s: float = 0.0) -> float:
        """How long a player is silent in all between first and last sample: it starts `buffer_s` after the first chunk,
        and whenever it has nothing left it goes on as soon as more has come."""
        dry_at_s, silent_s = self.first_audio_s + buffer_s, 0.0
        for at_s, samples in self.arrivals:
            late_s = max(at_s - dry_at_s, 0.0)
            silent_s += late_s
            dry_at_s += late_s + len(samples) / SAMPLE_RATE_HZ
        return silent_s


Wave = Sequence[Heard]
"""Utterances that were asked for at the same moment."""


def figures(waves: Sequence[Wave]) -> dict[tuple[str, str], float]:
    """By metric and unit, the median over the waves; of a wave, what is one utterance's is the mean of all, but for the
    last one's first audio."""

    def over(wave_value: Sequence[float]) -> float:
        return float(np.median(wave_value))

    def mean(utterance_value: str) -> float:
        return over([float(np.mean([getattr(heard, utterance_value) for heard in wave])) for wave in waves])

    end_s = [max(heard.end_s for heard in wave) for wave in waves]
    tokens = [sum(heard.num_tokens for heard in wave) for wave in waves]
    seconds = [sum(heard.duration_s for heard in wave) for wave in waves]
    return {
        ("first audio", "ms"): mean("first_audio_s") * 1e3,
        ("last one's first", "ms"): over([max(heard.first_audio_s for heard in wave) for wave in waves]) * 1e3,
        ("RTF", ""): mean("real_time_factor"),
        ("underruns", "s"): over([float(np.mean([heard.underrun_s() for heard in wave])) for wave in waves]),
        ("tokens", "1/s"): over([count / took_s for count, took_s in zip(tokens, end_s, strict=True)]),
        ("audio", "s/s"): over([sounds_s / took_s for sounds_s, took_s in zip(seconds, end_s, strict=True)]),
    }
