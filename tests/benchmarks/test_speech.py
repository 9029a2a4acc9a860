"""The speech benchmark: what a player hears, the checkpoints that it writes, and the loops that it measures against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image

from benchmarks.report import Report, Row
from benchmarks.speech import deployment
from benchmarks.speech.cases import (
    GREEDY,
    LONG_S,
    PUBLISHED,
    SMOLLM2,
    TALKER,
    Case,
    Sampling,
    cases,
    frames_in,
    text_cases,
)
from benchmarks.speech.checkpoints import SAMPLES_PER_FRAME, SIZES, Size, write_checkpoint
from benchmarks.speech.heard import Heard, figures
from benchmarks.speech.llamas import LlamaSize
from benchmarks.speech.native import NativeSpeech
from benchmarks.speech.plot import plot
from benchmarks.speech.speech_measure import compare
from benchmarks.speech.speech_systems import NAIVE, SERVED, STAGES
from mstar_rt.config import parse_deployment

TEST = Size("test", LlamaSize(32, 1, 2, 1, 32), 16, 32)
SECOND = np.zeros(24_000, np.float32)


def heard(*arrivals: tuple[float, float], end_s: float | None = None) -> Heard:
    """Chunks as (when they came, seconds that they sound)."""
    chunks = [(at_s, np.zeros(round(sounds_s * 24_000), np.float32)) for at_s, sounds_s in arrivals]
    return Heard(chunks, arrivals[-1][0] if end_s is None else end_s, 14)


def test_the_real_time_factor_counts_what_comes_before_the_first_audio() -> None:
    assert heard((3.0, 1.0), (4.0, 1.0)).real_time_factor == 2.0
    assert heard((3.0, 1.0), (4.0, 1.0), end_s=5.0).real_time_factor == 2.5


@pytest.mark.parametrize(
    ("arrivals", "buffer_s", "silent_s"),
    [
        ([(9.0, 5.0)], 0.0, 0.0),
        ([(1.0, 0.5), (1.25, 0.5), (2.0, 1.0)], 0.0, 0.0),
        ([(1.0, 0.5), (1.75, 0.5), (2.5, 1.0)], 0.0, 0.5),
        ([(1.0, 0.5), (1.75, 0.5), (2.5, 1.0)], 0.25, 0.25),
        ([(1.0, 0.5), (1.75, 1.5), (2.5, 1.0)], 0.0, 0.25),  # what is in hand later does not undo a silence
    ],
)
def test_underruns_add_up(arrivals: list[tuple[float, float]], buffer_s: float, silent_s: float) -> None:
    assert heard(*arrivals).underrun_s(buffer_s) == pytest.approx(silent_s)


def test_figures_of_a_wave() -> None:
    found = figures([[heard((1.0, 1.0)), heard((2.0, 1.0), (4.0, 1.0))]])
    assert found["first audio", "ms"] == pytest.approx(1500)
    assert found["last one's first", "ms"] == pytest.approx(2000)
    assert found["RTF", ""] == pytest.approx((1.0 + 2.0) / 2)
    assert found["underruns", "s"] == pytest.approx(0.5)
    assert found["tokens", "1/s"] == pytest.approx(28 / 4)
    assert found["audio", "s/s"] == pytest.approx(3 / 4)


def test_what_is_asked_for_is_measured() -> None:
    for quick in (True, False):
        measured = cases(quick)
        assert {1, 8} <= {streams for case in measured for streams in case.streams}
        assert any(case.seconds == LONG_S and 1 in case.streams for case in measured)
        assert all(case.size in SIZES for case in measured)
        assert {1, 4, 8} <= {batch for case in text_cases(quick) for batch in case.batches}
        assert {case.model for case in text_cases(quick)} == {SMOLLM2, TALKER}
    assert all(case.streams == (1, 2, 4, 8) for case in cases(False) if case.seconds == LONG_S)
    assert frames_in(LONG_S) * SAMPLES_PER_FRAME >= LONG_S * 24_000 > (frames_in(LONG_S) - 1) * SAMPLES_PER_FRAME


@pytest.mark.parametrize("quick", [True, False])
def test_the_deployment_has_one_thread_and_what_is_measured(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(deployment, "write_checkpoint", lambda size, folder: written.append(folder))
    monkeypatch.setattr(deployment, "write_talker", written.append)
    config = parse_deployment(deployment.describe(tmp_path, quick))
    (worker,) = config.workers
    assert (worker.threads, worker.dtype) == (1, "float32")
    assert worker.max_batch >= max(streams for case in cases(quick) for streams in case.streams)
    measured = {case.size for case in cases(quick)} | {case.model for case in text_cases(quick)}
    assert {model.name for model in config.models} == measured
    assert {path.name for path in written} == measured - {SMOLLM2}


def test_what_is_asked_for_is_checked() -> None:
    def of(sounds: float, first_ms: float) -> dict[tuple[str, str], float]:
        return {("audio", "s/s"): sounds, ("first audio", "ms"): first_ms}

    found = {NAIVE: of(2.0, 900.0), STAGES: of(4.0, 800.0), SERVED: of(5.0, 100.0)}
    reports = {streams: Report("speech", {}) for streams in (1, 4, 8)}
    case = Case("tiny", GREEDY, LONG_S, (1, 4, 8), 1)
    for streams, report in reports.items():
        compare(report, case, streams, found)
    throughput = {n: [check for check in r.checks if "throughput" in check.name] for n, r in reports.items()}
    (alone,), (eight,) = throughput[1], throughput[8]
    assert (alone.value, alone.bound, alone.holds) == (2.5, ">= 1", True)
    assert (eight.value, eight.bound, eight.holds) == (2.5, ">= 2.5", True)
    assert not throughput[4]
    earlier = {check.name: check.value for check in reports[1].checks if "first audio" in check.name}
    assert sorted(earlier.values()) == [8.0, 9.0]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> NativeSpeech:
    folder = tmp_path_factory.mktemp("speech") / TEST.name
    write_checkpoint(TEST, folder)
    torch.manual_seed(0)
    return NativeSpeech(TEST, folder)


@pytest.mark.parametrize("sampling", [GREEDY, PUBLISHED], ids=lambda sampling: sampling.name)
def test_a_random_checkpoint_speaks(native: NativeSpeech, sampling: Sampling) -> None:
    """`decode` refuses what is not audio or stands in a wrong place."""
    tokens = native.language.generate([native.prompt("Hello"), native.prompt("I am here.")], 35, sampling)
    assert len(set(tokens.flatten().tolist())) > 35
    audio = native.decode(tokens)
    assert audio.shape == (2, 5 * SAMPLES_PER_FRAME)
    assert np.abs(audio).max() < 1
    assert audio.std(axis=1).min() > 0.05
    assert np.abs(audio[0] - audio[1]).std() > 0.05, "the codec does not mind what it is given"
    assert np.array_equal(audio, native.decode(tokens)), "the codec draws noise"


def test_both_native_ways_say_the_same(native: NativeSpeech) -> None:
    texts = ["Hello", "I am here, but not for long.", "Yes"]
    loop, stages = native.one_after_the_other(texts, 14, GREEDY), native.stage_by_stage(texts, 14, GREEDY)
    for one, other in zip(loop, stages, strict=True):
        assert np.abs(one.audio - other.audio).max() < 1e-4
        assert one.num_tokens == other.num_tokens == 14
    assert np.abs(loop[0].audio - loop[2].audio).max() > 0.1, "two texts sound alike"
    assert [heard.first_audio_s for heard in loop] == sorted(heard.end_s for heard in loop)
    assert len({heard.end_s for heard in stages}) == 1


def test_the_picture_has_a_row_for_each_kind_of_case(tmp_path: Path) -> None:
    rows = [
        Row(f"{kind}, {streams} at once", system, metric, 1.0 + streams, unit)
        for kind in ("tiny", "middle")
        for streams in (1, 8)
        for system in ("naive loop", "served")
        for metric, unit in (("first audio", "ms"), ("audio", "s/s"), ("underruns", "s"), ("RTF", ""))
    ]
    path = tmp_path / "speech.png"
    plot(Report("speech", {}, rows), str(path))
    assert image.imread(path).shape[0] > 700
